"""Wherever the experts are computed, is it what the stock model computes?

Tolerance, as in tests/models: in fp32 both sides do the same products in another order. Here the
experts of a layer are added in the order of a plan, and the two devices' sums at the end: rounding
again, measured at most 6e-6 for logits of size 1; 1e-4 is asked, and identical greedy text.
"""

from __future__ import annotations

import pytest
import torch

import stock
from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import Timeline
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from random_plans import RandomBrain
from real_runs import PROMPT, Said, loaded, running, say, settings, truth
from stock_text import stock_logits

FP32_TOLERANCE = 1e-4


def assert_same(got: Said, wanted: Said) -> None:
    assert (got.logits - wanted.logits).abs().max() < FP32_TOLERANCE
    assert got.text == wanted.text


def lanes_used(runner: Runner) -> set[str]:
    """Where experts were computed, and whether any moved."""
    timeline = runner.machine.timeline
    return {span.lane for span in timeline.spans if span.kind != "dense"}


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_the_cpu_alone(name: str) -> None:
    how = settings("best-split", "two-speed", "impact", accelerator="none")
    with running(loaded(name), how, timeline=Timeline()) as runner:
        assert_same(say(runner), truth(name))
        assert lanes_used(runner) == {CPU}


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_every_expert_in_the_accelerator(name: str) -> None:
    model = loaded(name)
    how = settings("gpu-only", "lru", "none")
    with running(model, how, model.slots(1.0), timeline=Timeline()) as runner:
        assert_same(say(runner), truth(name))
        assert lanes_used(runner) == {GPU}


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_no_expert_in_the_accelerator(name: str) -> None:
    """It is there all the same, and computes the shared experts."""
    with running(loaded(name), slots=0, timeline=Timeline()) as runner:
        assert_same(say(runner), truth(name))
        assert lanes_used(runner) == {CPU}


@pytest.mark.parametrize("share", [0.15, 0.3, 0.7])
@pytest.mark.parametrize("name", stock.FAMILIES)
def test_a_random_mix_that_changes_every_step(name: str, share: float) -> None:
    model = loaded(name)
    slots = model.slots(share)
    brain = RandomBrain(model.spec, slots, seed=slots)
    how = settings("best-split", "two-speed", "impact", link_latency_us=600.0)
    with running(model, how, slots, brain=brain, timeline=Timeline()) as runner:
        assert_same(say(runner), truth(name))
        assert lanes_used(runner) == {CPU, GPU, PCIE}
    if share < 0.5:  # else hardly any expert is missing
        assert all(brain.done[kind] for kind in ("cpu", "gpu", "kept", "staged", "background"))


# In bf16 with experts on both devices: as close to the fp32 truth as the stock model's own bf16?
# The criterion of tests/models/test_parity.py: every product is rounded to 8 bits (relative 2^-8
# = 0.004), in other places on the two sides, and where two experts nearly tie a router may flip,
# which moves that token's logits by any amount. So the median error, which flips do not reach,
# may be 1.5 times the stock model's (measured: 0.96 to 1.17 times), as other processors round in
# other places. Two devices change little: parts are added in fp32 and rounded once.


def our_errors(name: str, seed: int) -> torch.Tensor:
    """On the fp32 model's own text, prompt and decoding."""
    model = loaded(name, "bf16")
    slots = model.slots(0.3)
    brain = RandomBrain(model.spec, slots, seed)
    with running(model, slots=slots, brain=brain) as runner:
        seen = [runner.step(ForwardPass([Piece(0, PROMPT, all_logits=True)]))]
        seen += [runner.step(ForwardPass([Piece(0, [token])])) for token in truth(name).text[:-1]]
    logits = torch.cat(seen)
    assert logits.dtype == torch.bfloat16
    return (logits.float() - truth(name).logits).abs()


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_bf16_is_as_close_to_the_truth_as_the_stock_models(name: str) -> None:
    half = stock.reload(stock.saved(name).folder, torch.bfloat16)
    theirs, _ = stock_logits(half, PROMPT + truth(name).text[:-1])
    their_median = (theirs.float() - truth(name).logits).abs().median()
    mine = our_errors(name, seed=3)
    assert mine.median() < 1.5 * their_median
    assert mine.median() < 0.03, "of logits of size 1"
