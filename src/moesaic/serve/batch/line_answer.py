"""From a line to its answer, by the functions that answer the same body over HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from moesaic.core.errors import EngineEnded
from moesaic.engine.request import Sender
from moesaic.serve.api_error import ApiError, engine_unavailable, impossible
from moesaic.serve.batch.batch_line import CHAT, COMPLETIONS, BatchLine
from moesaic.serve.caller import Caller
from moesaic.serve.chat import begin_chat
from moesaic.serve.completions import begin_completion
from moesaic.serve.endpoint import noted
from moesaic.serve.request_record import RequestRecord
from moesaic.serve.responses.responses import begin_response
from moesaic.serve.responses.schemas import ResponsesRequest
from moesaic.serve.responses.store import ResponseStore
from moesaic.serve.schemas import ChatRequest, CompletionRequest, decode
from moesaic.serve.service import Service

OK = 200
_UNAVAILABLE = engine_unavailable("").status


@dataclass(frozen=True, slots=True)
class LineAnswer:
    status: int
    body: dict[str, Any]
    record: RequestRecord  # what it has cost

    def fields(self, answer_id: str, custom_id: str) -> dict[str, Any]:
        """As the published Batch API writes it. An error of the request is a response, too."""
        response = {
            "status_code": self.status,
            "request_id": self.record.request_id,
            "body": self.body,
        }
        return {"id": answer_id, "custom_id": custom_id, "response": response, "error": None}


class EngineLost(Exception):
    """The engine has ended, or is not ready: the line has no answer yet."""


async def answer_line(service: Service, line: BatchLine) -> LineAnswer:
    record = RequestRecord(uuid4().hex, line.method, line.url)
    try:
        body = await _body(service, line, record)
    except Exception as error:
        if _lost(error):
            raise EngineLost from error
        refusal = noted(error, record)
        return LineAnswer(refusal.status, refusal.body(), record)
    return LineAnswer(OK, body, record)


def _lost(error: Exception) -> bool:
    unavailable = isinstance(error, ApiError) and error.status == _UNAVAILABLE
    return unavailable or isinstance(error, EngineEnded)


async def _body(service: Service, line: BatchLine, record: RequestRecord) -> dict[str, Any]:
    data, caller = bytes(line.body), Caller(Sender(), record)
    if line.url == CHAT:
        chat = decode(data, ChatRequest)
        _refuse_stream(chat.stream)
        return await (await begin_chat(service, chat, caller)).whole()
    if line.url == COMPLETIONS:
        completion = decode(data, CompletionRequest)
        _refuse_stream(completion.stream)
        return await (await begin_completion(service, completion, caller)).whole()
    response = decode(data, ResponsesRequest)
    _refuse_stream(response.stream)
    if response.previous_response_id is not None:
        raise impossible(
            "previous_response_id was given, and a batch stores no responses: send the whole "
            "conversation as input",
            "previous_response_id",
        )
    return await (await begin_response(service, response, caller, ResponseStore(most=0))).whole()


def _refuse_stream(stream: bool | None) -> None:
    if stream:
        raise impossible("stream is true, and a batch writes whole answers: leave it out", "stream")
