"""Is a connection closed whose client sends or takes nothing, and no other?"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
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
async def listening(body: bytes, **settings: Any) -> AsyncGenerator[int, None]:
    """The port of a server that answers with this body."""

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
        yield bound.getsockname()[1]
    finally:
        made.close()


async def connected(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """It takes little at a time from the system."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=client, limit=4096)


def soon(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), SOON_S))  # type: ignore[arg-type]


def test_a_connection_beyond_the_limit_has_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have the time that the operator gives them."""
    monkeypatch.setattr(connections, "_OVER_LIMIT_S", 0.2)

    async def use() -> None:
        async with listening(b"", receive_s=1000, max_connections=1) as port:
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
