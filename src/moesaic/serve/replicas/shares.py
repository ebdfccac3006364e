"""What each replica gets of the machines: cores, and a GPU where it computes on one."""

from __future__ import annotations

from collections.abc import Sequence

from moesaic.cluster.ray_cluster import Node
from moesaic.core.errors import ImpossibleSetting


def threads_each(nodes: Sequence[Node], replicas: int) -> int:
    """The most cores that every replica can have, each on one machine."""
    most = max((node.cpus for node in nodes), default=0)
    for threads in range(most, 0, -1):
        if sum(node.cpus // threads for node in nodes) >= replicas:
            return threads
    cores = sum(node.cpus for node in nodes)
    raise ImpossibleSetting(
        f"--replicas {replicas} need as many cores, and there are {cores}: ask for {cores} or fewer"
    )


def check_threads(nodes: Sequence[Node], replicas: int, threads: int) -> None:
    room = sum(node.cpus // threads for node in nodes)
    if room < replicas:
        raise ImpossibleSetting(
            f"--replicas {replicas} with --threads {threads} each: there are cores for {room} "
            f"(machines with {', '.join(str(node.cpus) for node in nodes)}); ask for fewer of "
            "either"
        )


def check_gpus(nodes: Sequence[Node], replicas: int) -> None:
    gpus = sum(node.gpus for node in nodes)
    if gpus < replicas:
        raise ImpossibleSetting(
            f"--replicas {replicas} need a GPU each, and there are {gpus}: ask for {gpus or 1} or "
            "fewer, or add --accelerator none"
        )
