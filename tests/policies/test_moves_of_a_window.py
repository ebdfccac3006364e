"""Does an expert move at most once per window? It is not yet where a first move brings it."""

from __future__ import annotations

from moesaic.policies.layout.trimoe import _once
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.runs import Run, Workload


def test_only_the_first_move_of_an_expert_is_made() -> None:
    """(kind, expert, destination, victim), best first."""
    moves = [[1, 7, 3, -1], [2, 5, 4, -1], [2, 7, 6, -1], [0, 9, -2, 8]]
    assert _once(moves) == [[1, 7, 3, -1], [2, 5, 4, -1], [0, 9, -2, 8]]


def test_links_that_move_several_experts_per_window_lose_none() -> None:
    """Eight links carry an expert in a third of the window: plans may chain moves."""
    fast = (("dimm_link.links", 8),)
    found = Run(Workload(paper.QWEN, 512, "together"), paper.OURS, changes=fast).execute()
    assert found.layer_ms > 0
