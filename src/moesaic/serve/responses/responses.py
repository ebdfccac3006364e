"""POST /v1/responses, and what it has stored."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from moesaic.serve.api_error import ApiError, impossible, json_response
from moesaic.serve.caller import Caller, caller_of
from moesaic.serve.chat_requests import Answers, begin_answers
from moesaic.serve.endpoint import (
    event_stream,
    read_body,
    response_error_event,
    service_of,
    while_connected,
)
from moesaic.serve.event_stream import named_event
from moesaic.serve.events import ReasoningDelta
from moesaic.serve.responses.output import Output
from moesaic.serve.responses.schemas import Item, ResponsesRequest
from moesaic.serve.responses.store import ResponseStore, Stored
from moesaic.serve.responses.to_chat import chat_request
from moesaic.serve.service import Service


async def create_response(request: HttpRequest) -> Response:
    service = service_of(request)
    asked = await read_body(request, ResponsesRequest)
    caller = caller_of(request, asked.user)
    begin = begin_response(service, asked, caller, store_of(request))
    answer = await while_connected(request, begin)
    try:
        if asked.stream:
            events, failed = answer.events(), answer.failed
            return event_stream(request, answer.generation, events, last=b"", failed=failed)
        return json_response(await while_connected(request, answer.whole()))
    except BaseException:
        answer.generation.end()
        raise


async def begin_response(
    service: Service, asked: ResponsesRequest, caller: Caller, store: ResponseStore
) -> ResponseAnswer:
    """Check the request and begin its answer, whichever way the request has come."""
    service.check_model(asked.model)
    service.refuse_unavailable()
    _check(asked)
    earlier: list[Item] = []
    if asked.previous_response_id is not None:
        earlier = store.get(asked.previous_response_id, "previous_response_id").conversation
    asked.input = [_referred(store, place, item) for place, item in enumerate(asked.items)]
    answers = await begin_answers(service, chat_request(asked, earlier), caller)
    with answers.generation.ended_on_error():
        return ResponseAnswer(service, asked, answers, store, (*earlier, *asked.items))


async def one_response(request: HttpRequest) -> Response:
    return json_response(store_of(request).get(request.path_params["response"]).response)


async def input_items(request: HttpRequest) -> Response:
    """The newest first, as the published API lists them."""
    items = store_of(request).get(request.path_params["response"]).input
    return json_response({"object": "list", "data": [*reversed(items)], "has_more": False})


async def delete_response(request: HttpRequest) -> Response:
    response_id = request.path_params["response"]
    store_of(request).remove(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


def store_of(request: HttpRequest) -> ResponseStore:
    store = request.app.state.responses
    assert isinstance(store, ResponseStore), "the app is made with one"
    return store


def _referred(store: ResponseStore, place: int, item: Item) -> Item:
    """Clients may name an item of a stored response instead of repeating it."""
    if item.get("type") != "item_reference":
        return item
    found = store.item(str(item.get("id")))
    if found is None:
        raise impossible(
            f"input[{place}] refers to the item {item.get('id')!r}, which is not stored here: "
            "send the item itself",
            "input",
        )
    return found


def _check(asked: ResponsesRequest) -> None:
    if asked.background:
        raise impossible("background is not possible here: leave it out, and stream", "background")
    if asked.conversation is not None:
        raise impossible(
            "conversations are not kept here: use previous_response_id, or send all as input",
            "conversation",
        )
    if not asked.items:
        raise impossible("input is empty: a conversation needs at least one message", "input")


class ResponseAnswer:
    def __init__(
        self,
        service: Service,
        asked: ResponsesRequest,
        answers: Answers,
        store: ResponseStore,
        given: Sequence[Item],
    ) -> None:
        """`given`: the conversation in front of its output."""
        self.generation, self._parser = answers.generation, answers.format.parser()
        self._store = store if asked.store is not False else None
        self._given = tuple(given)
        self._output, self._reasoning_tokens = Output(), 0
        self._number = count()  # of events of the stream
        self._head = _head(asked, store.new_id(), service.model_name)

    async def whole(self) -> dict[str, Any]:
        last: dict[str, Any] = {}
        async with aclosing(self._events()) as events:
            async for event in events:
                last = event
        response: dict[str, Any] = last["response"]
        return response

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The head comes first, before the engine has read the prompt."""
        for kind in ("response.created", "response.in_progress"):
            yield self._sent({"type": kind, "response": self._response("in_progress")})
        async with aclosing(self._events()) as events:
            async for event in events:
                yield self._sent(event)

    def failed(self, error: ApiError) -> bytes:
        """The last events of a stream that ends with this error: what was being written is
        incomplete, the response has failed, and the error as clients raise it."""
        ended = [self._sent(event) for event in self._output.end("incomplete")]
        code = "rate_limit_exceeded" if error.code == "rate_limit_exceeded" else "server_error"
        said = {"error": {"code": code, "message": error.message}}
        response = self._response("failed") | said
        ended.append(self._sent({"type": "response.failed", "response": response}))
        return b"".join([*ended, response_error_event(error, next(self._number))])

    def _sent(self, event: dict[str, Any]) -> bytes:
        data = msgspec.json.encode(event | {"sequence_number": next(self._number)})
        return named_event(event["type"], data)

    async def _events(self) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(self.generation.parts()) as parts:
            async for _, _, chunk in parts:
                found = self._parser.feed(chunk.text)
                ends = chunk.finish_reason is not None
                if ends:
                    found = [*found, *self._parser.finish()]
                self._reasoning_tokens += any(isinstance(each, ReasoningDelta) for each in found)
                for each in found:
                    for event in self._output.add(each):
                        yield event
                if ends:
                    status = "completed" if chunk.finish_reason == "stop" else "incomplete"
                    for event in self._output.end(status):
                        yield event
                    yield {"type": f"response.{status}", "response": self._ended(status)}

    def _ended(self, status: str) -> dict[str, Any]:
        response = self._response(status) | {"usage": self._usage()}
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        if self._store is not None:
            self._store.add(Stored(response, self._given))
        return response

    def _response(self, status: str) -> dict[str, Any]:
        return self._head | {"status": status, "output": [*self._output.items]}

    def _usage(self) -> dict[str, Any]:
        generation = self.generation
        read, written = generation.prompt_tokens, generation.generated_tokens
        return {
            "input_tokens": read,
            "input_tokens_details": {
                "cached_tokens": generation.cached_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": written,
            "output_tokens_details": {"reasoning_tokens": self._reasoning_tokens},
            "total_tokens": read + written,
        }


def _head(asked: ResponsesRequest, response_id: str, model: str) -> dict[str, Any]:
    """What a response repeats of its request."""
    form = None if asked.text is None else asked.text.format
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "error": None,
        "incomplete_details": None,
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": asked.metadata or {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": asked.previous_response_id,
        "store": asked.store is not False,
        "temperature": asked.temperature,
        "text": {"format": {"type": "text"} if form is None else msgspec.to_builtins(form)},
        "tool_choice": asked.tool_choice or "auto",
        "tools": [msgspec.to_builtins(each) for each in asked.tools or [] if each.is_function],
        "top_p": asked.top_p,
        "truncation": "disabled",
        "usage": None,
        "user": asked.user,
    }
