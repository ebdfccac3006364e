"""Is a response right? Its status, an error object in the form of the API that was asked, JSON that
strict parsers read, and streams that end as they should."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from fuzzing.http_requests import FuzzedRequest

_LONGEST_MESSAGE = 4000
_OWN_FAULTS = ("generation_failed", "internal_error")
_NOT_POSSIBLE = (404, 405)


@dataclass(frozen=True, slots=True)
class Answered:
    status: int
    headers: dict[str, str]  # names in small letters
    body: bytes


def complaint(request: FuzzedRequest, answered: Answered) -> str | None:
    """None: there is nothing to complain of."""
    if answered.status not in request.right:
        return f"status {answered.status}, right are {request.right}: {answered.body[:300]!r}"
    if request.method == "HEAD":
        return None
    if not answered.headers.get("x-request-id"):
        return "no x-request-id"
    if answered.status >= 400:
        return _complaint_about_error(request.path, answered)
    kind = answered.headers.get("content-type", "")
    try:
        if kind.startswith("text/event-stream"):
            return _complaint_about_stream(request.path, answered.body.decode())
        if kind.startswith("application/json"):
            _strict(answered.body)
    except (ValueError, UnicodeDecodeError) as error:
        return f"no JSON: {error}: {answered.body[:300]!r}"
    return None


def _complaint_about_error(path: str, answered: Answered) -> str | None:
    try:
        body = _strict(answered.body)
        error = body["error"]
        message = error["message"]
    except (ValueError, LookupError, TypeError) as failure:
        return f"{answered.status} without an error object ({failure}): {answered.body[:300]!r}"
    if path.startswith("/v1/messages"):
        fields, outer = {"type", "message"}, {"type", "error", "request_id"}
    else:
        fields, outer = {"message", "type", "param", "code"}, {"error"}
    if set(error) != fields or set(body) != outer:
        return f"an error object of another form: {answered.body[:300]!r}"
    return _complaint_about_words(message)


def _complaint_about_words(message: object) -> str | None:
    if not isinstance(message, str) or not message:
        return f"no message: {message!r}"
    if "Traceback" in message or ".py" in message:
        return f"the server's inside in a message: {message[:300]!r}"
    if len(message) > _LONGEST_MESSAGE:
        return f"a message of {len(message)} characters: {message[:100]!r}"
    return None


def _complaint_about_stream(path: str, text: str) -> str | None:
    """Every event is JSON, the last one says that it is the last."""
    events = [each for each in text.split("\n\n") if each and not each.startswith(":")]
    data = [line[6:] for each in events for line in each.split("\n") if line.startswith("data: ")]
    if path in ("/v1/messages", "/v1/responses"):
        ends = ("message_stop", "response.completed", "response.incomplete")
        if not data or _strict(data[-1].encode()).get("type") not in ends:
            return f"a stream without its end: {text[-300:]!r}"
    elif not data or data.pop() != "[DONE]":
        return f"a stream without [DONE]: {text[-300:]!r}"
    for each in data:
        if error := _strict(each.encode()).get("error"):
            return f"an error in a stream: {error}"
    return None


def _strict(data: bytes) -> Any:
    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(data.decode(), parse_constant=refuse)
