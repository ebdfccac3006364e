"""A server that serves the real page before a scripted model and a scripted engine."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import uvicorn
from scripted_engine import Engine
from scripted_model import ERRORS, events
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from moesaic.serve.page_files import page

PROPS = {"model": "Qwen3-30B-A3B", "n_ctx": 40_960, "default_generation_settings": {"top_p": 0.9}}


class Scripted:
    """What tests set, and what clients have asked."""

    def __init__(self) -> None:
        self.watching = 0  # streams that are read
        self.reset()
        routes = [
            Route("/", page),
            Route("/page/{file:path}", page),
            Route("/health", self._health),
            Route("/props", self._props),
            Route("/v1/chat/completions", self._chat, methods=["POST"]),
            Route("/insight/model", self._model),
            Route("/insight/stream", self._stream),
            Route("/insight/layers/{layer:int}", self._layer),
            Route("/insight/capture", self._capture, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)
        self.address = ""

    def reset(self) -> None:
        self.engine = Engine()
        self.engine_word = "ready"
        self.key: str | None = None
        self.insight_status = 200
        self.stepped = True
        self.lost = False
        self.pause_s = 0.1  # between snapshots
        self.token_s = 0.001  # between pieces of an answer
        self.answers: dict[str, str] = {}  # what is answered to other messages
        self.asked: list[dict[str, Any]] = []
        self.captures: list[dict[str, Any]] = []
        self.left = asyncio.Event()

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "engine": self.engine_word})

    async def _props(self, request: Request) -> Response:
        return self._refused(request) or JSONResponse(PROPS)

    async def _chat(self, request: Request) -> Response:
        if (refused := self._refused(request)) is not None:
            return refused
        body = await request.json()
        self.asked.append(body)
        said = body["messages"][-1]["content"]
        said = self.answers.get(said, said)
        if said in ERRORS:
            status, error, headers = ERRORS[said]
            return JSONResponse({"error": error}, status, headers)
        return StreamingResponse(
            events(said, self.left, self.token_s), media_type="text/event-stream"
        )

    async def _model(self, request: Request) -> Response:
        return self._no_insight(request) or JSONResponse(self.engine.model())

    async def _layer(self, request: Request) -> Response:
        return JSONResponse(self.engine.layer(1, request.path_params["layer"]))

    async def _stream(self, request: Request) -> Response:
        return self._no_insight(request) or StreamingResponse(
            self._snapshots(), media_type="text/event-stream"
        )

    async def _snapshots(self) -> AsyncIterator[bytes]:
        self.watching += 1
        try:
            for number in count(1):
                yield b"data: " + json.dumps(self._snapshot(number)).encode() + b"\n\n"
                await asyncio.sleep(self.pause_s)
        finally:
            self.watching -= 1

    def _snapshot(self, number: int) -> dict[str, Any]:
        if self.lost:
            return {"error": {"message": "the engine has ended", "type": "service_unavailable"}}
        return self.engine.snapshot(number) if self.stepped else self.engine.nothing_yet()

    async def _capture(self, request: Request) -> Response:
        self.captures.append(await request.json())
        headers = {"Content-Disposition": 'attachment; filename="routing-32.moet"'}
        return Response(b"MOET" * 100, headers=headers, media_type="application/octet-stream")

    def _refused(self, request: Request) -> Response | None:
        if self.key is None or request.headers.get("authorization") == f"Bearer {self.key}":
            return None
        error = {"message": "this server needs an API key", "code": "invalid_api_key"}
        return JSONResponse({"error": error}, 401)

    def _no_insight(self, request: Request) -> Response | None:
        if self.insight_status != 200:
            error = {"message": "the engine has ended", "code": "engine_unavailable"}
            return JSONResponse({"error": error}, self.insight_status)
        return self._refused(request)


@contextmanager
def scripted_server() -> Iterator[Scripted]:
    scripted = Scripted()
    config = uvicorn.Config(
        scripted.app,
        port=0,
        log_config=None,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,  # streams of snapshots have no end
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    scripted.address = f"http://127.0.0.1:{port}/"
    try:
        yield scripted
    finally:
        server.should_exit = True
        thread.join(10)
