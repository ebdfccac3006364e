"""Does every combination of policies give the stock model's text, whatever it moves?

A quarter of the experts has a slot, and a copy takes longer than an expert's arithmetic: transfers
are under way while others are computed. Every plan is checked. Tolerance as in test_placements.
"""

from __future__ import annotations

from collections import Counter

import pytest

from made_up import every_nth, policy_combinations, values_first
from moesaic.core.errors import ImpossibleSetting
from real_runs import can_run, loaded, measured, running, say, settings, truth

FP32_TOLERANCE = 1e-4
Names = tuple[str, str, str]  # schedule, cache, prefetch


# Policies see a routing, not the network it came from: the later families, whose routings have
# nothing of their own, are left to the other tests of placements.
FAMILIES = ("mixtral", "qwen2-moe", "qwen3-moe", "olmoe", "glm-4.5", "deepseek-v2")
COMBINATIONS = policy_combinations()
POSSIBLE = [names for names in COMBINATIONS if can_run(names)]
# Every combination with two of the six families, every policy with all of them.
TRIED = [
    (family, *names)
    for number, family in enumerate(FAMILIES)
    for names in every_nth(POSSIBLE, number, 3)
]


@pytest.mark.parametrize(("name", "schedule", "cache", "prefetch"), values_first(TRIED))
def test_the_text_is_the_stock_models(name: str, schedule: str, cache: str, prefetch: str) -> None:
    model, names = loaded(name), (schedule, cache, prefetch)
    with running(model, settings(*names), model.slots(0.25), belief=measured(name)) as runner:
        got = say(runner)
        moved = runner.bytes_moved
    assert (got.logits - truth(name).logits).abs().max() < FP32_TOLERANCE
    assert got.text == truth(name).text
    if schedule == "gpu-only":
        assert moved, "three quarters of the experts have to be brought"


def test_every_policy_that_can_run_is_tried() -> None:
    refused = {"belady", "oracle", "pre-gated", "static-layers"}
    every = [set(column) - refused for column in zip(*COMBINATIONS, strict=True)]
    for family in FAMILIES:
        tried = [names for name, *names in TRIED if name == family]
        assert [set(column) for column in zip(*tried, strict=True)] == every
    assert Counter(tuple(names) for _, *names in TRIED) == dict.fromkeys(POSSIBLE, 2)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("hybrid", "belady", "none"), "cache 'belady' must know the future"),
        (("hybrid", "lru", "oracle"), "prefetch 'oracle' must know the future"),
        (("hybrid", "pinned", "impact"), "cache 'pinned' never gives up a slot"),
        (("static-layers", "pinned", "none"), "puts whole layers, with attention and shared"),
    ],
)
def test_what_cannot_run_is_refused_with_the_way_out(names: Names, said: str) -> None:
    with pytest.raises(ImpossibleSetting, match=said) as caught:
        settings(*names)
    assert "moesaic simulate" in str(caught.value) or "use prefetch 'none'" in str(caught.value)
