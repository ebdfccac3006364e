"""The replicas as Ray Serve runs them: it starts them, starts those again that have ended, and ends
them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from uuid import uuid4

from moesaic.core.errors import EngineFailed
from moesaic.serve.replicas.replica import Launch, Replica

_HEALTH_S = 2.0  # between two questions whether a replica lives
_NO_LIMIT = 1 << 20  # of requests at a replica: it refuses by itself
_ROUTER = "moesaic.serve.replicas.router.PrefixRouter"
_QUIET = {"log_level": "CRITICAL", "enable_access_log": False}


@contextmanager
def deployed(launch: Launch, replicas: int, threads: int, gpus: int) -> Iterator[str]:
    """The name of the application, when all replicas have begun."""
    from ray import serve

    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    name = f"moesaic-{uuid4().hex[:8]}"
    serve.start(proxy_location="Disabled", logging_config=_QUIET)
    try:
        try:
            serve.run(_application(launch, replicas, threads, gpus), name=name, route_prefix=None)
        except RuntimeError as error:
            what = str(error).strip().splitlines()[-1]
            raise EngineFailed(f"the replicas could not be started: {what}") from None
        yield name
    finally:
        if not launch.alone:  # a cluster of its own ends with all that it has
            _end(name)


def _application(launch: Launch, replicas: int, threads: int, gpus: int) -> Any:
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    made = serve.deployment(
        Replica,
        num_replicas=replicas,
        max_ongoing_requests=_NO_LIMIT,
        health_check_period_s=_HEALTH_S,
        graceful_shutdown_timeout_s=launch.serving.drain_s,
        ray_actor_options={"num_cpus": threads, "num_gpus": gpus},
        request_router_config=RequestRouterConfig(request_router_class=_ROUTER),
        logging_config=_QUIET,
    )
    return made.bind(launch)


def _end(name: str) -> None:
    """Other applications of the cluster go on."""
    from ray import serve

    with suppress(Exception):  # the cluster may have ended before
        serve.delete(name)
        if not serve.status().applications:
            serve.shutdown()
