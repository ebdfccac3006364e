"""A real server in a process of its own, and the published client before it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import openai

CALL = "from moesaic.cli.main import main; main()"
SMALL = ("--port", "0", "--threads", "1", "--accelerator", "none", "--max-sequences", "4")
SOON_S = 120  # at most: on a busy machine a model is loaded slowly
NAME = "moesaic-20m"
QUESTION = [{"role": "user", "content": "Ann has 5 pens and buys 7 more. How many has she?"}]


class Server:
    def __init__(
        self, *options: object, under: Sequence[str] = (), seconds: float = SOON_S
    ) -> None:
        """`under`: a program that runs it."""
        self.lines: list[str] = []
        self.headers: dict[str, str] = {}  # of every request
        self.process = subprocess.Popen(
            [*under, sys.executable, "-c", CALL, "serve", *SMALL, *map(str, options)],
            stderr=subprocess.PIPE,
            text=True,
        )
        threading.Thread(target=self._read, daemon=True).start()
        try:
            until(lambda: self._address() is not None or self.process.poll() is not None, seconds)
        except BaseException:
            self.kill()
            raise
        found = self._address()
        assert found is not None, "\n".join(self.lines)
        self.address = found

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self, key: str = "unused") -> Any:
        """Its methods are typed by what is asked for, which varies in tests."""
        base = f"{self.address}/v1"
        return openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=SOON_S)

    def get(self, path: str) -> tuple[int, bytes]:
        return self.ask(path, None)

    def ask(
        self, path: str, body: object, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.address}{path}", data, self.headers | (headers or {})
        )
        try:
            with urllib.request.urlopen(request, timeout=SOON_S) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def json(self, path: str, body: object = None) -> Any:
        status, data = self.ask(path, body)
        assert status == 200, data
        return json.loads(data)

    def metric(self, name: str) -> float:
        _, data = self.get("/metrics")
        found = re.search(rf"^{re.escape(name)} (\S+)$", data.decode(), re.M)
        assert found is not None, name
        return float(found[1])

    def log(self) -> list[dict[str, Any]]:
        """The lines of requests so far."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    def engine_pid(self) -> int:
        (found,) = engines_of(self.process.pid)
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(SOON_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def _address(self) -> str | None:
        found = [re.search(r" at (http://\S+)/v1:", line) for line in list(self.lines)]
        return next((each[1] for each in found if each is not None), None)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))


@contextmanager
def server(*options: object, seconds: float = SOON_S) -> Iterator[Server]:
    made = Server(*options, seconds=seconds)
    try:
        yield made
    finally:
        made.kill()


def children_of(pid: int) -> list[int]:
    found: set[str] = set()
    for task in os.listdir(f"/proc/{pid}/task"):
        with suppress(OSError), open(f"/proc/{pid}/task/{task}/children") as children:
            found |= set(children.read().split())
    return [int(each) for each in found]


def engines_of(pid: int) -> list[int]:
    """Child processes that run an engine."""
    return [each for each in children_of(pid) if "engine.process.child" in _command(each)]


def posted(url: str, body: object = None, headers: dict[str, str] | None = None) -> bytes:
    """The answer to a request that is not refused; without a body, of GET."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers or {})
    with urllib.request.urlopen(request, timeout=SOON_S) as response:
        answer: bytes = response.read()
    return answer


def events_of(data: bytes) -> list[tuple[str, str]]:
    """Name and data of each event of a stream."""
    found = []
    for block in data.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line[:1] != ":")
        if fields:
            found.append((fields.get("event", ""), fields["data"]))
    return found


def until(condition: Callable[[], bool], seconds: float = SOON_S) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)


def _command(pid: int) -> str:
    with suppress(OSError), open(f"/proc/{pid}/cmdline") as command:
        return command.read()
    return ""
