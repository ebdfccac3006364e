"""Kills the engine, the server in front of it and clients, at random, and checks after every kill
what docs/serving.md promises.

    python -m benchmarks.chaos --kills 100

Clients stream answers all the time. When the engine is killed, each of them gets an error that says
how it ended, and /health says so; it is started again once per server, and after its second end
every request is refused with the reason. When the server is killed, its engine ends with it, its
port is free, and the next server removes what was left in the folder for temporary files. When a
client is killed, its answer ends, and the others get theirs. The exit status is 1 if something was
not so."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.http_exchange import Exchange, exchange
from benchmarks.server_process import ServerProcess, moesaic_server

KINDS = ("engine", "front", "client")
_SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
_SOON_S = 60.0
_CLIENTS = 4
_FOLDERS = "moesaic-engine-*"
_ASK: dict[str, Any] = {"prompt": "Once", "temperature": 0, "ignore_eos": True, "stream": True}
# A client in a process of its own: it says when its answer has begun, and reads on.
_CLIENT = (
    "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1])));"
    "b = sys.argv[2].encode(); s.sendall(b'POST /v1/completions HTTP/1.1\\r\\nHost: localhost\\r\\n"
    "Content-Length: %d\\r\\n\\r\\n' % len(b) + b)\n"
    "while p := s.recv(65536):\n    print(len(p), flush=True)\n"
)


@dataclass
class Found:
    kills: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    servers: int = 0


class Chaos:
    """One server at a time; another is started where the last one is not to go on."""

    def __init__(self, seed: int, folder: Path) -> None:
        """`folder`: for the temporary files of servers."""
        self.found, self._folder = Found(), folder
        self._rng = random.Random(seed)
        self._server: ServerProcess | None = None
        self._engines_lost = 0  # of this server

    def run(self, kills: int, kinds: Sequence[str] = KINDS) -> Found:
        try:
            for number in range(kills):
                kind = kinds[number] if number < len(kinds) else self._rng.choice(kinds)
                asyncio.run(self._kill(number, kind, self._started()))
                self.found.kills[kind] += 1
            self._started()  # the next server removes what the last one left, killed or not
        finally:
            if self._server is not None:
                self._check(self._server.close() == 0, "the server has not ended in order")
        left = self._folders()
        self._check(not left, f"left in the folder for temporary files: {left}")
        return self.found

    def _started(self) -> ServerProcess:
        if self._server is None:
            options = ("--threads", 1, "--accelerator", "none", "--max-sequences", 8)
            self._server = moesaic_server(
                (*options, "--drain", 1), environment={"TMPDIR": str(self._folder)}
            )
            self._engines_lost = 0
            self.found.servers += 1
            left = self._folders()
            self._check(len(left) == 1, f"of servers that were killed there is still {left}")
        return self._server

    async def _kill(self, number: int, kind: str, server: ServerProcess) -> None:
        streams = [_Stream(server.address) for _ in range(_CLIENTS)]
        tasks = [asyncio.create_task(each.run()) for each in streams]
        try:
            await self._until(lambda: all(each.begun for each in streams), "no answer has begun")
            await asyncio.sleep(self._rng.uniform(0, 0.3))
            if kind == "engine":
                await self._kill_engine(server, tasks)
            elif kind == "front":
                await self._kill_front(server, tasks)
            else:
                await self._kill_client(server, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        print(f"kill {number + 1}: {kind}, {len(self.found.wrong)} wrong", file=sys.stderr)

    async def _kill_engine(
        self, server: ServerProcess, tasks: list[asyncio.Task[Exchange]]
    ) -> None:
        engine = server.engine_pid()
        if engine is None:
            self.found.wrong.append("there is no engine to kill")
            return
        how = self._rng.choice(_SIGNALS)
        os.kill(engine, how)
        for found in await asyncio.wait_for(asyncio.gather(*tasks), _SOON_S):
            error = _error_of(found)
            self._check(f"was ended by {how.name}" in error, f"a client was told {error!r}")
        self._engines_lost += 1
        again = self._engines_lost == 1
        health = await exchange(server.address, "/health")
        loading = health.status == 503 or (again and health.status == 200)
        self._check(loading, f"/health is {health.status} after the engine's end")
        if again:
            await self._until_async(lambda: _healthy(server), "the engine was not started again")
            await self._answers(server)
            return
        words = health.body().decode()
        self._check(how.name in words, f"/health does not say why: {words}")
        refused = await exchange(server.address, "/v1/completions", _ASK | {"max_tokens": 2})
        self._check(refused.status == 503, f"status {refused.status} without an engine")
        self._check(how.name in refused.body().decode(), "a refusal does not say why")
        self._check(server.close() == 0, "a server without an engine has not ended in order")
        self._server = None

    async def _kill_front(self, server: ServerProcess, tasks: list[asyncio.Task[Exchange]]) -> None:
        engine, port = server.engine_pid(), int(server.address.rpartition(":")[2])
        shared = set(os.listdir("/dev/shm")) if Path("/dev/shm").is_dir() else set()
        server.process.kill()
        server.process.wait()
        for found in await asyncio.wait_for(asyncio.gather(*tasks), _SOON_S):
            self._check(not found.ended, "an answer of a killed server looks whole")
        await self._until(lambda: engine is None or _gone(engine), "the engine outlives its server")
        self._check(not _taken(port), f"port {port} is still taken")
        if shared:
            new = set(os.listdir("/dev/shm")) - shared
            self._check(not new, f"shared memory is left: {new}")
        self._server = None

    async def _kill_client(
        self, server: ServerProcess, tasks: list[asyncio.Task[Exchange]]
    ) -> None:
        port, body = server.address.rpartition(":")[2], json.dumps(_ASK | {"max_tokens": 900})
        client = subprocess.Popen(
            [sys.executable, "-S", "-c", _CLIENT, port, body], stdout=subprocess.PIPE
        )
        assert client.stdout is not None
        with client.stdout as said:
            for _ in range(self._rng.randint(1, 4)):
                await asyncio.to_thread(said.readline)
            client.kill()
        client.wait()
        await self._until_async(
            lambda: _slots_are(server, _CLIENTS, tasks), "a killed client's answer goes on"
        )
        for found in await asyncio.wait_for(asyncio.gather(*tasks), _SOON_S):
            self._check(found.ended and not _error_of(found), "another client's answer was hurt")
        await self._answers(server)

    async def _answers(self, server: ServerProcess) -> None:
        found = await exchange(server.address, "/v1/completions", _ASK | {"max_tokens": 2})
        self._check(found.status == 200 and not _error_of(found), f"no answer: {found.raw[:300]!r}")

    def _folders(self) -> list[str]:
        return [each.name for each in self._folder.glob(_FOLDERS)]

    def _check(self, right: bool, otherwise: str) -> None:
        if not right:
            self.found.wrong.append(otherwise)

    async def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        async def asked() -> bool:
            return condition()

        await self._until_async(asked, otherwise)

    async def _until_async(self, condition: Callable[[], Any], otherwise: str) -> None:
        end = monotonic() + _SOON_S
        while not await condition():
            if monotonic() > end:
                self.found.wrong.append(otherwise)
                return
            await asyncio.sleep(0.02)


class _Stream:
    """A client in this process, whose answer is long enough for what is to happen."""

    def __init__(self, address: str) -> None:
        self._address, self.begun = address, False

    async def run(self) -> Exchange:
        return await exchange(
            self._address, "/v1/completions", _ASK | {"max_tokens": 300}, self._look
        )

    def _look(self, found: Exchange) -> bool:
        self.begun = self.begun or b'"text"' in found.raw
        return False


def _error_of(found: Exchange) -> str:
    """Nothing: the answer is whole."""
    errors = [each.value().get("error") for each in found.events()]
    said = [each["message"] for each in errors if each]
    return said[0] if said else "" if found.ended else "the connection was closed"


async def _healthy(server: ServerProcess) -> bool:
    with suppress(OSError):
        return (await exchange(server.address, "/health")).status == 200
    return False


async def _slots_are(
    server: ServerProcess, most: int, tasks: Sequence[asyncio.Task[Exchange]]
) -> bool:
    """No more answers are written than there are clients left."""
    slots = (await exchange(server.address, "/slots")).json()
    return len(slots) <= min(most, sum(not each.done() for each in tasks))


def _gone(pid: int) -> bool:
    """Or it only waits to be asked how it ended."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


def _taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def chaos(kills: int, seed: int = 0, kinds: Sequence[str] = KINDS) -> Found:
    with tempfile.TemporaryDirectory(prefix="mc-") as folder:
        return Chaos(seed, Path(folder)).run(kills, kinds)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    found = chaos(options.kills, options.seed)
    words = ", ".join(f"{kind} {count}" for kind, count in sorted(found.kills.items()))
    print(f"{sum(found.kills.values())} kills ({words}), {found.servers} servers")
    for each in found.wrong:
        print(each)
    print(f"{len(found.wrong)} promises were not kept")
    return 1 if found.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
