"""What do replicas get of their machines, and what do they say together?"""

from __future__ import annotations

import pytest

from moesaic.cluster.ray_cluster import Node
from moesaic.core.errors import ImpossibleSetting
from moesaic.serve.replicas.merged_metrics import merged
from moesaic.serve.replicas.shares import check_gpus, check_threads, threads_each


def nodes(*cores: int, gpus: int = 0) -> list[Node]:
    return [Node(str(i), f"10.0.0.{i}", each, gpus) for i, each in enumerate(cores)]


@pytest.mark.parametrize(
    ("cores", "replicas", "threads"),
    [((2,), 1, 2), ((2,), 2, 1), ((16,), 3, 5), ((16, 8), 2, 8), ((16, 8), 3, 8), ((16, 4), 2, 8)],
)
def test_every_replica_has_as_many_cores_as_can_be(
    cores: tuple[int, ...], replicas: int, threads: int
) -> None:
    assert threads_each(nodes(*cores), replicas) == threads
    check_threads(nodes(*cores), replicas, threads)


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(ImpossibleSetting, match="--replicas 3 need as many cores, and there are 2"):
        threads_each(nodes(2), 3)
    with pytest.raises(ImpossibleSetting, match="there are cores for 1 "):
        check_threads(nodes(16, 8), 3, 9)
    with pytest.raises(ImpossibleSetting, match="need a GPU each, and there are 2"):
        check_gpus(nodes(8, 8, gpus=1), 3)
    check_gpus(nodes(8, 8, gpus=1), 2)


def test_metrics_of_replicas_stand_together() -> None:
    one = (
        "# HELP a_total Things.\n# TYPE a_total counter\na_total 3\n"
        "# HELP b Times.\n# TYPE b histogram\n"
        'b_bucket{le="1"} 2\nb_bucket{le="+Inf"} 4\nb_sum 7.5\nb_count 4\n'
        "# HELP moesaic_http_responses_total Responses by status.\n"
        "# TYPE moesaic_http_responses_total counter\n"
        'moesaic_http_responses_total{status="200"} 9\n'
    )
    assert merged({"x": one, "y": one.replace("a_total 3", "a_total 5")}) == (
        "# HELP a_total Things.\n# TYPE a_total counter\n"
        'a_total{replica="x"} 3\na_total{replica="y"} 5\n'
        "# HELP b Times.\n# TYPE b histogram\n"
        + "".join(
            f'b_bucket{{le="1",replica="{name}"}} 2\nb_bucket{{le="+Inf",replica="{name}"}} 4\n'
            f'b_sum{{replica="{name}"}} 7.5\nb_count{{replica="{name}"}} 4\n'
            for name in "xy"
        )
    )
