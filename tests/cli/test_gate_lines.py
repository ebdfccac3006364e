"""Is what a gate has done said in words that fit the numbers?"""

from __future__ import annotations

from dataclasses import asdict

import pytest

from moesaic.cli.shared.gate_lines import gate_lines
from moesaic.engine.gate_stats import GateStats


@pytest.mark.parametrize(("saved", "words"), [(0.25, "25.0% fewer"), (-0.25, "25.0% more")])
def test_reads_of_drafts_are_fewer_or_more(saved: float, words: str) -> None:
    found = GateStats(
        "self-speculative", little_s=1.0, big_s=1.0, tokens_per_check=2.0, reads_per_token=30.0,
        reads_saved=saved,
    )  # fmt: skip
    assert dict(gate_lines(asdict(found)))["reads"] == (
        f"30.0 experts per token, {words} than top-k in every layer"
    )


def test_the_full_model_says_nothing() -> None:
    assert gate_lines(asdict(GateStats("full"))) == []
