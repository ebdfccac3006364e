"""POST /v1/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple
from uuid import uuid4

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from moesaic.engine.request import Request, Sender
from moesaic.engine.sampling.sampled import Sampled
from moesaic.serve.api_error import impossible, json_response
from moesaic.serve.caller import Caller, caller_of
from moesaic.serve.chat_choice import finish_reason
from moesaic.serve.endpoint import event_stream, read_body, service_of, while_connected
from moesaic.serve.event_stream import event
from moesaic.serve.generation import Generation
from moesaic.serve.logprobs import CompletionLogprobs, shown
from moesaic.serve.sampling import answers_asked, completion_params
from moesaic.serve.schemas import CompletionRequest
from moesaic.serve.service import Service


async def completions(request: HttpRequest) -> Response:
    service = service_of(request)
    asked = await read_body(request, CompletionRequest)
    caller = caller_of(request, asked.user)
    answer = await while_connected(request, begin_completion(service, asked, caller))
    try:
        if asked.stream:
            return event_stream(request, answer.generation, answer.events())
        return json_response(await while_connected(request, answer.whole()))
    except BaseException:
        answer.generation.end()
        raise


async def begin_completion(
    service: Service, asked: CompletionRequest, caller: Caller
) -> CompletionAnswer:
    """Check the request and begin its answer, whichever way the request has come."""
    service.check_model(asked.model)
    service.refuse_unavailable()
    _refuse_unsupported(asked)
    each = answers_asked(asked, service.processor.defaults)
    service.refuse_too_many(len(asked.prompts()) * each)  # before so many are made
    made = await service.prepare(_requests, service, asked, caller.sender)
    generation = service.begin([each.request for each in made], caller.record)
    with generation.ended_on_error():
        return CompletionAnswer(service, asked, generation, [each.echo for each in made])


def _refuse_unsupported(asked: CompletionRequest) -> None:
    if asked.suffix:
        raise impossible(
            "suffix was given: this server writes what follows a text, not what stands between "
            "two; leave it out",
            "suffix",
        )
    if asked.best_of not in (None, 1, asked.n):
        raise impossible(
            f"best_of is {asked.best_of}: this server returns all answers it writes; use n",
            "best_of",
        )
    if asked.echo and asked.logprobs is not None:
        raise impossible(
            "echo and logprobs were given: log-probabilities of prompts are not computed here; "
            "leave out one of the two",
            "echo",
        )


class _Made(NamedTuple):
    request: Request
    echo: str  # the prompt, where it comes before the answer


def _requests(service: Service, asked: CompletionRequest, sender: Sender) -> list[_Made]:
    processor = service.processor
    params = completion_params(asked, processor.defaults, processor.context)
    made: list[_Made] = []
    for prompt in asked.prompts():
        if isinstance(prompt, str):
            service.check_text(prompt)
        tokens = processor.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        service.check_length(tokens)
        requests = processor.completions(tokens or prompt, params, sender)
        echo = ""
        if asked.echo:
            echo = processor.tokenizer.decode(requests[0].prompt, skip_special=False)
        made += [_Made(request, echo) for request in requests]
    return made


class CompletionAnswer:
    """All choices of one call: `n` for every prompt, in the order of the prompts."""

    def __init__(
        self,
        service: Service,
        asked: CompletionRequest,
        generation: Generation,
        echoes: Sequence[str],
    ) -> None:
        self._asked, self.generation = asked, generation
        tokenizer = service.processor.tokenizer
        self._logprobs = [CompletionLogprobs(tokenizer) for _ in generation.requests]
        self._echoes = echoes
        self._head = {
            "id": f"cmpl-{uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.model_name,
        }

    async def whole(self) -> dict[str, Any]:
        texts = [[echo] for echo in self._echoes]
        tokens: list[list[Sampled]] = [[] for _ in texts]
        reasons: list[str | None] = [None] * len(texts)
        async with aclosing(self.generation.parts()) as parts:
            async for place, request, chunk in parts:
                texts[place].append(chunk.text)
                tokens[place] += shown(request, chunk.logprobs)
                if chunk.finish_reason is not None:
                    reasons[place] = finish_reason(chunk.finish_reason)
        choices = [
            self._choice(place, "".join(text), tokens[place], reasons[place])
            for place, text in enumerate(texts)
        ]
        return self._head | {"choices": choices, "usage": self.generation.usage()}

    async def events(self) -> AsyncGenerator[bytes, None]:
        for place, echo in enumerate(self._echoes):
            if echo:
                yield self._event([self._choice(place, echo, [], None)], None)
        pending: list[list[Sampled]] = [[] for _ in self._echoes]  # whose text is held back
        async with aclosing(self.generation.parts()) as parts:
            async for place, request, chunk in parts:
                pending[place] += shown(request, chunk.logprobs)
                if not chunk.text and chunk.finish_reason is None:
                    continue
                reason = None if chunk.finish_reason is None else finish_reason(chunk.finish_reason)
                yield self._event([self._choice(place, chunk.text, pending[place], reason)], None)
                pending[place] = []
        if self._includes_usage:
            yield self._event([], self.generation.usage())

    @property
    def _includes_usage(self) -> bool:
        options = self._asked.stream_options
        return options is not None and bool(options.include_usage)

    def _choice(
        self, place: int, text: str, tokens: list[Sampled], reason: str | None
    ) -> dict[str, Any]:
        known = None if self._asked.logprobs is None else self._logprobs[place].of(tokens)
        return {"index": place, "text": text, "logprobs": known, "finish_reason": reason}

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        body = self._head | {"choices": choices}
        if self._includes_usage:
            body["usage"] = usage
        return event(msgspec.json.encode(body))
