"""Asks the server's app what no client should: `make fuzz-serve`, or with options
`PYTHONPATH=tests python -m fuzzing.fuzz_serve --requests 100000`.

Every request is made from its number, so that a failure can be made again: bodies of the published
schemas, right and wrong, mutated, as bytes, in pieces, under other methods and paths. The app is
that of the server, before an engine in a process of its own with the bundled model; requests reach
it without a socket, several at a time. A failure is a status that is not right, an error that has
not the API's form, a traceback in the log, or a request that takes longer than `--seconds`."""

from __future__ import annotations

import argparse
import asyncio
import io
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from urllib.parse import quote

from starlette.applications import Starlette

from fuzzing.http_requests import FuzzedRequest, request_of
from fuzzing.judged_responses import Answered, complaint
from fuzzing.request_bodies import MODEL
from moesaic.engine.async_llm import AsyncLLM
from moesaic.engine.process.process_options import ProcessOptions
from moesaic.serve.app import make_app
from moesaic.serve.server_settings import ServerSettings
from moesaic.serve.service import Service

SLOWEST_S = 120.0  # an answer without a limit fills the context
AT_ONCE = 8
_CONTEXT = 700
_BODY_MB = 0.1
_TOOL_FORMAT = "hermes"  # the model has none of its own, and no call could be demanded


class Failure(NamedTuple):
    number: int
    kind: str
    path: str
    what: str


@dataclass
class Outcome:
    requests: int = 0
    slowest_s: float = 0.0
    slowest: int = 0  # its number
    failures: list[Failure] = field(default_factory=list)
    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)  # by kind


@asynccontextmanager
async def opened_app() -> AsyncIterator[Starlette]:
    llm = AsyncLLM(
        None,
        threads=1,
        accelerator="none",
        max_model_len=_CONTEXT,
        max_sequences=AT_ONCE,
        process=ProcessOptions(),
    )
    settings = ServerSettings(
        model_names=(MODEL,), max_body_mb=_BODY_MB, log="json", tool_format=_TOOL_FORMAT
    )
    try:
        yield make_app(Service(llm, settings), lambda request: None)
    finally:
        await llm.close()


async def ask(app: Starlette, request: FuzzedRequest) -> Answered:
    """What a server's socket would bring it, and what it would send."""
    left: Iterator[bytes] = iter(request.pieces)
    pieces = len(request.pieces)
    ended = asyncio.Event()
    start: dict[str, Any] = {}
    body = bytearray()

    async def receive() -> dict[str, Any]:
        nonlocal pieces
        if pieces:
            pieces -= 1
            return {"type": "http.request", "body": next(left), "more_body": pieces > 0}
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
            return
        body.extend(message.get("body", b""))
        if not message.get("more_body"):
            ended.set()

    await app(_scope(request), receive, send)
    headers = {name.decode().lower(): value.decode("latin-1") for name, value in start["headers"]}
    return Answered(start["status"], headers, bytes(body))


def _scope(request: FuzzedRequest) -> dict[str, Any]:
    headers = list(request.headers)
    if not request.chunked:
        headers.append((b"content-length", str(len(request.body)).encode()))
    raw = quote(request.path, errors="surrogatepass").encode()
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": request.path,
        "raw_path": raw,
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 8000),
        "state": {},
    }


async def fuzz(numbers: range, seconds: float = SLOWEST_S) -> Outcome:
    """These requests, so many at a time that they meet in the engine."""
    outcome, left = Outcome(), iter(numbers)
    async with opened_app() as app:

        async def work() -> None:
            for number in left:
                request = request_of(number)
                begin = time.perf_counter()
                what, status = await _judged(app, request, seconds)
                took = time.perf_counter() - begin
                if took > outcome.slowest_s:
                    outcome.slowest_s, outcome.slowest = took, number
                outcome.requests += 1
                outcome.statuses[request.kind, status] += 1
                if what is not None:
                    outcome.failures.append(Failure(number, request.kind, request.path, what))

        await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return outcome


async def _judged(app: Starlette, request: FuzzedRequest, seconds: float) -> tuple[str | None, int]:
    try:
        async with asyncio.timeout(seconds):
            answered = await ask(app, request)
    except TimeoutError:
        return f"took longer than {seconds:g} s", 0
    except Exception as error:
        return f"{type(error).__name__} left the app: {str(error)[:200]}", 0
    return complaint(request, answered), answered.status


def run(numbers: range, seconds: float = SLOWEST_S) -> Outcome:
    """With what the log says that it should not."""
    log = io.StringIO()
    with redirect_stderr(log):
        outcome = asyncio.run(fuzz(numbers, seconds))
    for place in log.getvalue().split("Traceback")[1:]:
        outcome.failures.append(Failure(-1, "log", "", f"Traceback{place[-600:]}"))
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first request")
    parser.add_argument("--seconds", type=float, default=SLOWEST_S, help="a request may take")
    asked = parser.parse_args()
    begin, failures = time.perf_counter(), []
    statuses: Counter[tuple[str, int]] = Counter()
    each = 2000
    for first in range(asked.first, asked.first + asked.requests, each):
        numbers = range(first, min(first + each, asked.first + asked.requests))
        found = run(numbers, asked.seconds)
        failures += found.failures
        statuses += found.statuses
        print(
            f"{numbers.stop - asked.first} requests, {len(failures)} failures, slowest "
            f"{found.slowest_s:.1f} s (request {found.slowest}), "
            f"{time.perf_counter() - begin:.0f} s",
            flush=True,
        )
        for failure in found.failures[:20]:
            print(f"  {failure.number} {failure.kind} {failure.path}: {failure.what}", flush=True)
    for (kind, status), count in sorted(statuses.items()):
        print(f"  {kind:10} {status} {count}")
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
