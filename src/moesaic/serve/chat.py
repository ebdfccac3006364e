"""POST /v1/chat/completions."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any
from uuid import uuid4

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from moesaic.engine.sampling.sampled import Sampled
from moesaic.serve.api_error import impossible, json_response
from moesaic.serve.caller import Caller, caller_of
from moesaic.serve.chat_choice import ChatChoice
from moesaic.serve.chat_requests import Answers, begin_answers
from moesaic.serve.endpoint import event_stream, read_body, service_of, while_connected
from moesaic.serve.event_stream import event
from moesaic.serve.logprobs import chat_logprobs, shown
from moesaic.serve.schemas import ChatRequest
from moesaic.serve.service import Service


async def chat_completions(request: HttpRequest) -> Response:
    service = service_of(request)
    asked = await read_body(request, ChatRequest)
    caller = caller_of(request, asked.user)
    answer = await while_connected(request, begin_chat(service, asked, caller))
    try:
        if asked.stream:
            return event_stream(request, answer.generation, answer.events())
        return json_response(await while_connected(request, answer.whole()))
    except BaseException:
        answer.generation.end()
        raise


async def begin_chat(service: Service, asked: ChatRequest, caller: Caller) -> ChatAnswer:
    """Check the request and begin its answer, whichever way the request has come."""
    service.check_model(asked.model)
    service.refuse_unavailable()
    if not asked.messages:
        raise impossible("messages is empty: a conversation needs at least one", "messages")
    answers = await begin_answers(service, asked, caller)
    with answers.generation.ended_on_error():
        return ChatAnswer(service, asked, answers)


class ChatAnswer:
    """All choices of one call."""

    def __init__(self, service: Service, asked: ChatRequest, answers: Answers) -> None:
        self._asked, self.generation = asked, answers.generation
        self._tokenizer = service.processor.tokenizer
        self._choices = [ChatChoice(answers.format.parser()) for _ in self.generation.requests]
        self._head = {
            "id": f"chatcmpl-{uuid4().hex}",
            "created": int(time.time()),
            "model": service.model_name,
        }

    async def whole(self) -> dict[str, Any]:
        tokens: list[list[Sampled]] = [[] for _ in self._choices]
        async with aclosing(self.generation.parts()) as parts:
            async for place, request, chunk in parts:
                self._choices[place].feed(chunk.text, chunk.finish_reason)
                tokens[place] += shown(request, chunk.logprobs)
        choices = [
            {
                "index": index,
                "message": choice.message(),
                "logprobs": self._logprobs(tokens[index]),
                "finish_reason": choice.finish_reason,
            }
            for index, choice in enumerate(self._choices)
        ]
        usage = self.generation.usage()
        return self._head | {"object": "chat.completion", "choices": choices, "usage": usage}

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The role comes first, before the engine has read the prompt."""
        for index in range(len(self._choices)):
            yield self._chunk(index, {"role": "assistant", "content": ""})
        pending: list[list[Sampled]] = [[] for _ in self._choices]  # whose text is held back
        async with aclosing(self.generation.parts()) as parts:
            async for place, request, chunk in parts:
                choice = self._choices[place]
                pending[place] += shown(request, chunk.logprobs)
                deltas = choice.feed(chunk.text, chunk.finish_reason)
                for delta in deltas:
                    yield self._chunk(place, delta, pending[place])
                    pending[place] = []
                if choice.finish_reason is not None:
                    yield self._chunk(place, {}, pending[place], reason=choice.finish_reason)
        if self._includes_usage:
            yield self._event([], self.generation.usage())

    @property
    def _includes_usage(self) -> bool:
        options = self._asked.stream_options
        return options is not None and bool(options.include_usage)

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        tokens: list[Sampled] | None = None,
        reason: str | None = None,
    ) -> bytes:
        choice = {
            "index": index,
            "delta": delta,
            "logprobs": self._logprobs(tokens) if tokens else None,
            "finish_reason": reason,
        }
        return self._event([choice], None)

    def _event(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None) -> bytes:
        body = self._head | {"object": "chat.completion.chunk", "choices": choices}
        if self._includes_usage:
            body["usage"] = usage
        return event(msgspec.json.encode(body))

    def _logprobs(self, tokens: list[Sampled]) -> dict[str, Any] | None:
        return chat_logprobs(tokens, self._tokenizer) if self._asked.logprobs else None
