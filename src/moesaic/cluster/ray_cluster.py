"""A Ray cluster for one command: one of this machine alone, which is started for it and ended with
it, or one that is running already."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting, MissingExtra

LOCAL = "local"  # the address that asks for a cluster of this machine alone
_STORE_BYTES = 100 << 20  # of shared memory: what is sent is small
_LONGEST_FOLDER = 24  # characters: sockets lie below it, and their addresses end at 107

# Read when Ray is imported, and inherited by its processes.
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # without it, a warning about devices
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",  # a signal ends a command without a trace
}
_ALONE = {
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # every address is 127.0.0.1
    "RAY_enable_metrics_collection": "0",
    "RAY_worker_niceness": "0",  # they compute, and are no background
    "RAY_AUTH_MODE": "token",  # other users of this machine are kept out
}


class Node(NamedTuple):
    id: str
    address: str
    cpus: int
    gpus: int


def check_ray(feature: str) -> None:
    if find_spec("ray") is None:
        raise MissingExtra(feature, "ray")


@contextmanager
def ray_cluster(address: str, cores: int, logs: bool = False) -> Iterator[list[Node]]:
    """Its machines. `cores` are those of a local one; with `logs`, what its processes write to
    their standard streams is written here, too."""
    check_ray(f"--ray {address}")
    os.environ.update(_QUIET)
    if address == LOCAL:
        with _folder() as folder:
            _start(folder, cores, logs)
            yield from _connected()
    else:
        _connect(address, logs)
        yield from _connected()


def _connected() -> Iterator[list[Node]]:
    import ray

    try:
        yield _nodes()
    finally:
        ray.shutdown()


def _start(folder: str, cores: int, logs: bool) -> None:
    os.environ.update(_ALONE)
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    import ray

    try:
        ray.init(
            address=LOCAL,
            num_cpus=cores,
            object_store_memory=_STORE_BYTES,
            include_dashboard=False,
            log_to_driver=logs,
            logging_level=logging.ERROR,
            _node_ip_address="127.0.0.1",
            _temp_dir=folder,
        )
    except Exception as error:  # Ray raises that very class where a process of its own is late
        what = str(error).strip().splitlines()
        raise ImpossibleSetting(
            f"Ray could not be started on this machine ({what[0] if what else type(error)}): free "
            "memory and cores, or run without it"
        ) from None


def _connect(address: str, logs: bool) -> None:
    if "://" in address:
        raise ImpossibleSetting(
            f"--ray {address!r} is no address of a cluster's head: give HOST:PORT as `ray start "
            f"--head` prints it, `auto` for the cluster that this machine is in, or {LOCAL}"
        )
    import ray

    try:
        ray.init(address=address, log_to_driver=logs, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ImpossibleSetting(
            f"--ray {address!r}: no cluster could be joined there "
            f"({str(error).strip().splitlines()[0]}); start one with `ray start --head`, join it "
            f"from this machine with `ray start --address HOST:PORT`, or use --ray {LOCAL}"
        ) from None


def _nodes() -> list[Node]:
    import ray

    return [
        Node(
            each["NodeID"],
            each["NodeManagerAddress"],
            int(each["Resources"].get("CPU", 0)),
            int(each["Resources"].get("GPU", 0)),
        )
        for each in ray.nodes()
        if each["Alive"]
    ]


@contextmanager
def _folder() -> Iterator[str]:
    """For sockets and logs of a local cluster, removed with it."""
    usual = tempfile.gettempdir()
    parent = usual if len(usual) <= _LONGEST_FOLDER else "/tmp"
    folder = tempfile.mkdtemp(prefix="moesaic-ray-", dir=parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
