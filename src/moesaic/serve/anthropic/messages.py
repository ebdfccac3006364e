"""POST /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from moesaic.engine.completion import FinishReason
from moesaic.engine.request import Request
from moesaic.serve.anthropic.account import account
from moesaic.serve.anthropic.content import Content
from moesaic.serve.anthropic.schemas import CountRequest, MessagesRequest
from moesaic.serve.anthropic.to_chat import chat_request
from moesaic.serve.api_error import json_response
from moesaic.serve.caller import caller_of
from moesaic.serve.chat_requests import Answers, begin_answers
from moesaic.serve.conversation import conversation_tokens
from moesaic.serve.endpoint import event_stream, read_body, service_of, while_connected
from moesaic.serve.event_stream import named_event
from moesaic.serve.service import Service


async def messages(request: HttpRequest) -> Response:
    service = service_of(request)
    asked = await read_body(request, MessagesRequest)
    service.check_model(asked.model)
    service.refuse_unavailable()
    chat = chat_request(asked)
    user = None if asked.metadata is None else account(asked.metadata.user_id)
    begin = begin_answers(service, chat, caller_of(request, user))
    answers = await while_connected(request, begin)
    generation = answers.generation
    try:
        answer = MessageAnswer(service, answers)
        if asked.stream:
            return event_stream(request, generation, answer.events(), last=b"")
        return json_response(await while_connected(request, answer.whole()))
    except BaseException:
        generation.end()
        raise


async def count_tokens(request: HttpRequest) -> Response:
    """Exact: the prompt is made as for an answer."""
    service = service_of(request)
    asked = await read_body(request, CountRequest)
    service.check_model(asked.model)
    chat, tokenizer = chat_request(asked), service.processor.tokenizer
    making = service.prepare(conversation_tokens, chat, tokenizer)
    tokens = await while_connected(request, making)
    return json_response({"input_tokens": len(tokens)})


class MessageAnswer:
    def __init__(self, service: Service, answers: Answers) -> None:
        self._generation, self._parser = answers.generation, answers.format.parser()
        self._content = Content()
        self._head = {
            "id": f"msg_{uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": service.model_name,
        }

    async def whole(self) -> dict[str, Any]:
        end: dict[str, Any] = {}
        async with aclosing(self._events()) as events:
            async for event in events:
                if event["type"] == "message_delta":
                    end = event["delta"] | {"usage": event["usage"]}
        return self._head | {"content": self._content.blocks()} | end

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The head comes first, before the engine has read the prompt."""
        usage = self._usage() | {"output_tokens": 0}
        empty: dict[str, Any] = {
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }
        yield _sent({"type": "message_start", "message": self._head | empty})
        async with aclosing(self._events()) as events:
            async for event in events:
                yield _sent(event)
        yield _sent({"type": "message_stop"})

    async def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(self._generation.parts()) as parts:
            async for _, request, chunk in parts:
                found = self._parser.feed(chunk.text)
                if chunk.finish_reason is not None:
                    found = [*found, *self._parser.finish()]
                for each in found:
                    for event in self._content.add(each):
                        yield event
                if chunk.finish_reason is not None:
                    for event in self._content.end():
                        yield event
                    yield {
                        "type": "message_delta",
                        "delta": self._end(request, chunk.finish_reason),
                        "usage": self._usage(),
                    }

    def _end(self, request: Request, reason: FinishReason) -> dict[str, Any]:
        stop = request.output.stopped_by
        words = "max_tokens"
        if reason == "stop":
            words = "end_turn" if stop is None else "stop_sequence"
            if self._content.calls:
                words = "tool_use"
        return {"stop_reason": words, "stop_sequence": stop}

    def _usage(self) -> dict[str, int]:
        """Tokens that were found in the KV cache are counted apart."""
        generation = self._generation
        return {
            "input_tokens": generation.prompt_tokens - generation.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": generation.cached_tokens,
            "output_tokens": generation.generated_tokens,
        }


def _sent(event: dict[str, Any]) -> bytes:
    return named_event(event["type"], msgspec.json.encode(event))
