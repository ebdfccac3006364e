"""`moesaic serve --replicas N`: several engines behind one address."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from moesaic.core.errors import ImpossibleSetting

if TYPE_CHECKING:
    from moesaic.cluster.ray_cluster import Node
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.serve.replicas.front import Front
    from moesaic.serve.server_settings import ServerSettings


def check_replicas(asked: Mapping[str, Any]) -> None:
    from moesaic.cluster.ray_cluster import check_ray

    if asked["replicas"] is None:
        if asked["ray"] is not None:
            raise ImpossibleSetting("--ray says where replicas run: add --replicas N")
        return
    check_ray("--replicas")
    if asked["idle_unload"] is not None:
        raise ImpossibleSetting(
            "--idle-unload is of a single engine, and --replicas runs several: leave one of them "
            "out"
        )
    if asked["placement"] is not None:
        raise ImpossibleSetting(
            "--placement FILE is written by one engine, and --replicas runs several: leave one of "
            "them out"
        )


def serve_replicas(
    model: str | None,
    settings: EngineSettings,
    serving: ServerSettings,
    bound: socket.socket,
    asked: Mapping[str, Any],
) -> None:
    from moesaic.cluster.ray_cluster import LOCAL, ray_cluster
    from moesaic.cluster.same_version import check_same_version
    from moesaic.serve.replicas.deployment import deployed
    from moesaic.serve.replicas.front import Front
    from moesaic.serve.replicas.front_app import make_front_app
    from moesaic.serve.replicas.replica import Launch
    from moesaic.serve.server import address_of, run

    replicas, address = asked["replicas"], asked["ray"] or LOCAL
    click.echo(f"starting {replicas} replica{'s' if replicas > 1 else ''} with Ray", err=True)
    with ray_cluster(address, settings.cores, logs=True) as nodes:
        if address != LOCAL:
            check_same_version(nodes)
        threads, gpus = _shares(nodes, replicas, settings)
        settings = replace(settings, threads=threads)
        launch = Launch(_everywhere(model), settings, serving, address == LOCAL)
        with deployed(launch, replicas, threads, gpus) as application:
            front = Front(application, serving)
            ready = partial(_say_ready, front, address_of(bound), replicas, threads)
            run(front, partial(make_front_app, front), bound, ready)


def _shares(nodes: Sequence[Node], replicas: int, settings: EngineSettings) -> tuple[int, int]:
    """Cores and GPUs of each replica."""
    from moesaic.serve.replicas.shares import check_gpus, check_threads, threads_each

    gpus = 1 if settings.capabilities.own_memory else 0
    if gpus:
        check_gpus(nodes, replicas)
    if settings.threads is None:
        return threads_each(nodes, replicas), gpus
    check_threads(nodes, replicas, settings.threads)
    return settings.threads, gpus


def _everywhere(model: str | None) -> str | None:
    """An id stays one, which every machine fetches; a path is the same on all machines."""
    return str(Path(model).resolve()) if model is not None and Path(model).exists() else model


def _say_ready(front: Front, address: str, replicas: int, threads: int) -> None:
    names, each = ", ".join(front.settings.model_names), front.started
    click.echo(
        f"{names} at {address}/v1: {replicas} replicas of {threads} threads, each with up to "
        f"{each.sequences} answers at once, {each.context} tokens each",
        err=True,
    )
