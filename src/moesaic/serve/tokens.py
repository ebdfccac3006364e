"""POST /tokenize and /detokenize: what a prompt is to the model."""

from __future__ import annotations

from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from moesaic.serve.api_error import impossible, json_response
from moesaic.serve.conversation import conversation_tokens
from moesaic.serve.endpoint import read_body, service_of
from moesaic.serve.schemas import DetokenizeRequest, TokenizeRequest
from moesaic.serve.service import Service


async def tokenize(request: Request) -> Response:
    service = service_of(request)
    asked = await read_body(request, TokenizeRequest)
    service.check_model(asked.model)
    tokens = await service.prepare(_tokens, service, asked)
    context = service.processor.context
    return json_response({"tokens": tokens, "count": len(tokens), "max_model_len": context})


async def detokenize(request: Request) -> Response:
    service = service_of(request)
    asked = await read_body(request, DetokenizeRequest)
    service.check_model(asked.model)
    tokenizer = service.processor.tokenizer
    if unknown := [token for token in asked.tokens if not 0 <= token < tokenizer.vocabulary]:
        raise impossible(
            f"tokens has {unknown[0]}; the tokenizer knows ids from 0 to "
            f"{tokenizer.vocabulary - 1}",
            "tokens",
        )
    text = await service.prepare(partial(tokenizer.decode, asked.tokens, skip_special=False))
    return json_response({"prompt": text})


def _tokens(service: Service, asked: TokenizeRequest) -> list[int]:
    if (asked.prompt is None) == (asked.messages is None):
        raise impossible("give either prompt (a text) or messages (a conversation)", "prompt")
    tokenizer = service.processor.tokenizer
    if asked.prompt is not None:
        return tokenizer.encode(asked.prompt, special=asked.add_special_tokens)
    return conversation_tokens(asked, tokenizer)
