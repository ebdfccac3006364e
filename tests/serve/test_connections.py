"""Is a connection closed whose client sends or takes nothing, and no other?"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import pytest

pytest.importorskip("uvicorn")

import uvicorn
from starlette.types import Receive, Scope, Send

from moesaic.serve import connections
from moesaic.serve.connections import limited_protocol
from moesaic.serve.metrics import ServerMetrics
from moesaic.serve.server_settings import ServerSettings

SOON_S = 60.0
ASK = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


@asynccontextmanager
async def listening(
    body: bytes, **settings: Any
) -> AsyncGenerator[tuple[int, uvicorn.server.ServerState], None]:
    """The port of a server that answers with this body, and its connections."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    protocol: Any = limited_protocol(ServerSettings(**settings), ServerMetrics())
    config = uvicorn.Config(app, http=protocol, log_config=None, lifespan="off")
    config.load()
    state = uvicorn.server.ServerState()
    bound = socket.create_server(("127.0.0.1", 0))
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    loop = asyncio.get_running_loop()
    made = await loop.create_server(lambda: protocol(config, state, {}), sock=bound)
    try:
        yield bound.getsockname()[1], state
    finally:
        made.close()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """It takes little at a time from the system."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=client, limit=4096)


def soon(work: Callable[[], Coroutine[None, None, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), SOON_S))


def test_a_connection_beyond_the_limit_has_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have the time that the operator gives them."""
    monkeypatch.setattr(connections, "_OVER_LIMIT_S", 0.2)

    async def use() -> None:
        async with listening(b"", receive_s=1000, max_connections=1) as (port, _):
            first, writer = await connected(port)
            silent, _ = await connected(port)
            assert await silent.read() == b""
            slow, begun = await connected(port)
            begun.write(ASK[:10])
            refusal = await slow.read()
            assert refusal.startswith(b"HTTP/1.1 503 Service Unavailable")
            assert b"too_many_connections" in refusal
            writer.write(ASK)
            assert (await first.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    soon(use)


@pytest.mark.parametrize("size", [60_000, 3_000_000])
def test_a_client_that_takes_nothing_of_an_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Also of one that the server's own buffer holds; a client that reads slowly gets all."""
    monkeypatch.setattr(connections, "_UNTAKEN_S", 0.5)

    async def use() -> None:
        async with listening(b"x" * size, receive_s=1000) as (port, state):
            never, writer = await connected(port)
            writer.write(ASK)
            slow, asked = await connected(port)
            asked.write(ASK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            got = 0
            for _ in range(8):  # longer than the time in which nothing may be taken
                got += len(await slow.read(4096))
                await asyncio.sleep(0.1)
            while piece := await slow.read(1 << 16):
                got += len(piece)
            assert got > size
            while state.connections:
                await asyncio.sleep(0.01)
            assert len(await never.read()) < size

    soon(use)


def test_many_files_may_be_open() -> None:
    lines = (
        "import resource as r; from moesaic.serve.open_files import allow_many_files",
        "hard = r.getrlimit(r.RLIMIT_NOFILE)[1]",
        "r.setrlimit(r.RLIMIT_NOFILE, (64, hard)); allow_many_files()",
        "print(r.getrlimit(r.RLIMIT_NOFILE)[0] in (hard, 65536), r.getrlimit(r.RLIMIT_NOFILE))",
    )
    call = [sys.executable, "-c", "\n".join(lines)]
    found = subprocess.run(call, capture_output=True, text=True, check=True)
    assert found.stdout.startswith("True"), found.stdout
