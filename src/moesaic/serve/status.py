"""What the server says of itself: models, health, properties, slots and metrics."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from moesaic import __version__
from moesaic.engine.request import Request as EngineRequest
from moesaic.serve.api_error import json_response
from moesaic.serve.endpoint import service_of
from moesaic.serve.metrics import CONTENT_TYPE
from moesaic.serve.service import Service


async def models(request: Request) -> Response:
    service = service_of(request)
    return json_response({"object": "list", "data": _models(service)})


async def one_model(request: Request) -> Response:
    service, name = service_of(request), request.path_params["model"]
    service.check_model(name)
    return json_response(next(each for each in _models(service) if each["id"] == name))


async def health(request: Request) -> Response:
    """200 when a request would be taken; else the error that it would get."""
    service = service_of(request)
    service.refuse_unavailable()
    return json_response({"status": "ok", "engine": service.engine_word})


async def props(request: Request) -> Response:
    service = service_of(request)
    defaults, context = service.processor.defaults, service.processor.context
    settings = {
        name: getattr(defaults, name)
        for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
    }
    return json_response(
        {
            "model": service.model_name,
            "model_aliases": service.settings.model_names,
            "version": __version__,
            "total_slots": service.llm.sequences,
            "n_ctx": context,
            "max_prompt_tokens": service.settings.max_prompt_tokens or context - 1,
            "max_queue": service.settings.max_queue,
            "default_generation_settings": settings,
        }
    )


async def slots(request: Request) -> Response:
    """One entry for every answer that has not ended."""
    return json_response(
        [
            _slot(each, generation.record.request_id)
            for generation in service_of(request).generations
            for each in generation.requests
            if each.finish_reason is None
        ]
    )


async def metrics(request: Request) -> Response:
    service = service_of(request)
    stats = await asyncio.to_thread(service.llm.stats)
    text = service.metrics.text(stats, service.takes_requests, service.llm.state.ready)
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


def _models(service: Service) -> list[dict[str, Any]]:
    return [
        {
            "id": name,
            "object": "model",
            "created": service.started_at,
            "owned_by": "moesaic",
            "max_model_len": service.processor.context,
        }
        for name in service.settings.model_names
    ]


def _slot(request: EngineRequest, request_id: str) -> dict[str, Any]:
    return {
        "id": request.id,
        "request_id": request_id,
        "is_processing": True,
        "client": request.client,
        "prompt_tokens": len(request.prompt),
        "cached_tokens": request.cached_tokens,
        "generated_tokens": len(request.sampled),
    }
