"""GET /insight, /insight/model, /insight/layers/N, /insight/stream; POST /insight/capture."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from moesaic.core.errors import MoesaicError
from moesaic.engine.insight.capture_order import CaptureKind, CaptureOrder
from moesaic.engine.insight.facts import Insight
from moesaic.serve.api_error import ApiError, impossible, json_response
from moesaic.serve.endpoint import noted, read_body, service_of, while_connected
from moesaic.serve.event_stream import EventStream, event
from moesaic.serve.insight.snapshot import layer_json, model_json, snapshot_json
from moesaic.serve.insight.watcher import PERIOD_S
from moesaic.serve.request_record import record_of
from moesaic.serve.service import Service

_AFTER_ERROR_S = 2.0
_MOST_WAIT_S = 3600.0
_FILES = {
    "perfetto": ("application/json", "json"),
    "routing": ("application/octet-stream", "moet"),
}


class CaptureRequest(msgspec.Struct):
    kind: CaptureKind
    steps: int = 32
    wait_s: float = 60.0


async def insight(request: Request) -> Response:
    service = service_of(request)
    return Response(await _snapshot(service, await _latest(service)), media_type="application/json")


async def insight_model(request: Request) -> Response:
    return json_response(model_json((await _latest(service_of(request))).engine))


async def insight_layer(request: Request) -> Response:
    """One layer of the last step, however many experts the step had."""
    found, asked = await _latest(service_of(request)), request.path_params["layer"]
    layers = [] if found.step is None else found.step.layers
    if asked >= found.engine.layers:
        raise ApiError(
            404,
            f"there is no layer {asked}; layers with routed experts have the numbers 0 to "
            f"{found.engine.layers - 1}",
            param="layer",
            code="not_found",
        )
    if asked >= len(layers):
        raise impossible("no step has been noted yet: ask again while an answer is written")
    return json_response(layer_json(layers[asked], found.engine))


async def insight_stream(request: Request) -> Response:
    service = service_of(request)
    return EventStream(
        _events(service, request),
        service.settings.keep_alive_s,
        lambda: None,
        request.app.state.drop,
    )


async def insight_capture(request: Request) -> Response:
    service = service_of(request)
    asked = await read_body(request, CaptureRequest)
    if not 0 < asked.wait_s <= _MOST_WAIT_S:
        raise impossible(
            f"wait_s is {asked.wait_s:g}; it must be above 0 and at most {_MOST_WAIT_S:g}", "wait_s"
        )
    order = CaptureOrder(asked.kind, asked.steps)
    service.refuse_unavailable()
    watcher = service.watcher
    if watcher.captures:
        raise ApiError(
            409,
            "another capture is under way, and there is one at a time: ask again when it has ended",
            code="capture_under_way",
        )
    watcher.captures = True
    try:
        data = await while_connected(request, service.llm.capture(order, asked.wait_s))
    finally:
        watcher.captures = False
    kind, ending = _FILES[asked.kind]
    name = f"{service.model_name.rpartition('/')[2]}-{asked.kind}.{ending}"
    disposition = f'attachment; filename="{_plain(name)}"'
    return Response(data, media_type=kind, headers={"Content-Disposition": disposition})


async def _events(service: Service, request: Request) -> AsyncGenerator[bytes, None]:
    """A snapshot whenever anything but the time has changed. An engine that is lost is said once,
    and asked again."""
    before: Insight | str | None = None
    while not service.draining:
        try:
            found = await _latest(service)
            now: Insight | str = replace(found, time_s=0.0)
            if now != before:
                yield event(await _snapshot(service, found))
            wait_s = PERIOD_S
        except (ApiError, MoesaicError) as error:
            told = noted(error, record_of(request))
            now, wait_s = told.message, _AFTER_ERROR_S
            if now != before:
                yield event(msgspec.json.encode(told.body()))
        before = now
        await asyncio.sleep(wait_s)


async def _latest(service: Service) -> Insight:
    service.refuse_unavailable()
    return await service.watcher.latest()


async def _snapshot(service: Service, found: Insight) -> bytes:
    names = {
        each.id: generation.record.request_id
        for generation in service.generations
        for each in generation.requests
    }
    return await asyncio.to_thread(_encoded, found, names)


def _encoded(found: Insight, names: dict[int, str]) -> bytes:
    made: dict[str, Any] = snapshot_json(found, names)
    return msgspec.json.encode(made)


def _plain(name: str) -> str:
    return "".join(each if each.isalnum() or each in "-_." else "_" for each in name)
