"""Studies on a cluster: while one is joined, `worker_pool` gives its processes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from moesaic.core.worker_pool import pools_from


@contextmanager
def study_jobs(address: str | None, jobs: int | None, files: Sequence[str] = ()) -> Iterator[int]:
    """How many parts are computed at the same time: on this machine, or on the cluster at this
    address, whose machines must have the same `files`. At least two there, since one alone is
    computed in this process."""
    if address is None:
        yield jobs or os.cpu_count() or 1
        return
    from moesaic.cluster.ray_cluster import LOCAL, ray_cluster
    from moesaic.cluster.ray_pool import ray_pool
    from moesaic.cluster.same_version import check_same_version

    with ray_cluster(address, jobs or os.cpu_count() or 1) as nodes:
        if address != LOCAL:
            check_same_version(nodes, files)
        with pools_from(ray_pool):
            yield max(2, jobs or sum(node.cpus for node in nodes))
