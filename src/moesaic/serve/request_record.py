"""What one HTTP request was and cost: filled in while it is answered, one line of the log at the
end."""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Literal

from starlette.requests import Request

LogFormat = Literal["text", "json"]


@dataclass(slots=True)
class RequestRecord:
    request_id: str
    method: str
    path: str
    status: int | None = None  # None: no response was begun
    client: str = ""  # as the queue knows it
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    prefix_differs: dict[str, object] | None = None  # where the prompt leaves what was kept
    generated_tokens: int | None = None
    time_to_first_token_s: float | None = None
    duration_s: float = 0.0
    finish_reason: str | None = None
    error: str | None = None
    replica: str | None = None  # that answered, where there are several


def record_of(request: Request) -> RequestRecord:
    record = request.state.record
    assert isinstance(record, RequestRecord), "made by the outermost layer of the app"
    return record


class RequestLog:
    """Lines on standard error."""

    def __init__(self, form: LogFormat | None) -> None:
        """None: no lines."""
        self._form = form

    def write(self, record: RequestRecord) -> None:
        if self._form is None:
            return
        known = {name: value for name, value in asdict(record).items() if value not in (None, "")}
        for name, value in known.items():
            if isinstance(value, float):
                known[name] = round(value, 4)
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self._form == "json":
            line = json.dumps({"time": now, **known})
        else:
            line = f"{now} {_text(known)}"
        with suppress(OSError, ValueError):  # a server goes on when its log is closed
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()


def _text(known: dict[str, object]) -> str:
    """What a client has chosen is quoted: it may have line ends."""
    path, error = json.dumps(known.pop("path")), known.pop("error", None)
    differs = known.pop("prefix_differs", None)
    head = [known.pop("request_id"), known.pop("method"), path, known.pop("status", "-")]
    client = known.pop("client", None)
    rest = [f"{name}={value}" for name, value in known.items()]
    rest += [] if differs is None else [f"prefix_differs={json.dumps(differs)}"]
    rest += [] if client is None else [f"client={json.dumps(client)}"]
    rest += [] if error is None else [f"error={json.dumps(error)}"]
    return " ".join(map(str, [*head, *rest]))
