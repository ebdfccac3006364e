"""MoBiLE's second reading: does the big pass use what the evicted one's routers chose, and nothing
else of it?"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gated_text import two_models
from small_llms import MACHINES, greedy, llm, prompts

import stock
from made_up import in_turns
from moesaic import SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.llm import LLM
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.experts.reused_routing import ReusedRouting
from moesaic.policies.gate import gates
from moesaic.policies.policy_choice import PolicyChoice

TOKENS, SURE_ABOVE = 10, 0.1
READINGS = ("experts", "routing")


def gated(name: str, reuse: str, machine: str = "cpu", **options: Any) -> LLM:
    gate = f"big-little:gamma={SURE_ABOVE},reuse={reuse}"
    return llm(stock.saved(name).folder, machine, dtype="fp32", gate=gate, **options)


def by_hand(name: str, reuse: str, params: SamplingParams) -> list[list[int]]:
    found = [two_models(name).write(each, params, SURE_ABOVE, reuse) for each in prompts()]
    return [[sampled.token for sampled in each.tokens] for each in found]


CASES = [
    pytest.param("olmoe", *case.values, marks=case.marks)
    for case in in_turns([*READINGS], [*MACHINES])
]
CASES += [pytest.param("qwen3-moe", reuse, "cpu") for reuse in READINGS]


@pytest.mark.parametrize(("name", "reuse", "machine"), CASES)
def test_text_is_that_of_a_big_model_bound_to_the_little_ones_choice(
    name: str, reuse: str, machine: str
) -> None:
    """Alone, where a pass is run natively, and in batches that mix bound tokens with others."""
    expected = by_hand(name, reuse, greedy(TOKENS))
    with gated(name, reuse, machine) as model:
        together = [list(one.tokens) for one in model.generate(prompts(), greedy(TOKENS))]
        alone = [list(model.generate([each], greedy(TOKENS))[0].tokens) for each in prompts()]
        stats = model.stats()
    assert together == expected
    assert alone == expected
    assert stats.rerun_tokens > TOKENS / 2, "the comparison would say little"
    if stats.gate.prefetch_accuracy is not None:
        assert stats.gate.prefetch_accuracy == 1.0


def test_the_readings_are_three_models() -> None:
    """Every token of a text runs again: only with routers that are asked again it is the whole
    model's."""
    whole = read_again("full")
    found = [read_again(f"big-little:gamma=1,reuse={reuse}") for reuse in ("none", *READINGS)]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert (found[first] - found[second]).abs().max() > 1e-3
    assert (found[0] - whole).abs().max() < 1e-4
    assert all((each - whole).abs().max() > 1e-3 for each in found[1:])


def read_again(gate: str) -> torch.Tensor:
    with llm(stock.saved("olmoe").folder, dtype="fp32", gate=gate) as model:
        runner = model.model.runner
        runner.step(ForwardPass([Piece(0, [1, 2, 3])]))
        tokens = [Piece(0, [token], prompt=False) for token in range(4, 20)]
        return torch.cat([runner.settled_step(each) for each in tokens])


@pytest.mark.parametrize("reuse", READINGS)
def test_passes_of_others_between_the_two_change_nothing(reuse: str) -> None:
    """What is reused belongs to the sequence, not to the pass before: a prompt, a step that fails
    and another sequence's tokens may lie between."""
    with gated("olmoe", reuse, max_sequences=2) as model:
        runner = model.model.runner
        first, second = Piece(0, [4], prompt=False), Piece(1, [9], prompt=False)
        runner.step(ForwardPass([Piece(0, [1, 2, 3])]))
        runner.step(ForwardPass([first]))
        assert runner.take_back(ForwardPass([first]), [0]) == [0]
        at_once = runner.step(ForwardPass([again(first)]))
        runner.cache.truncate(0, 3)
        runner.step(ForwardPass([first]))
        assert runner.take_back(ForwardPass([first]), [0]) == [0]
        runner.step(ForwardPass([Piece(1, [7, 8])]))
        runner.step(ForwardPass([second]))
        with pytest.raises(IndexError):  # there is no such token
            runner.step(ForwardPass([again(first, 10**6)]))
        later = runner.step(ForwardPass([again(first)]))
    assert torch.equal(at_once, later)


def again(sequence: Piece, *tokens: int) -> Piece:
    return sequence._replace(attempt=1, tokens=tokens or sequence.tokens)


def test_a_complete_routing_is_replayed_as_the_router_would_weigh_it() -> None:
    rule = two_models("qwen3-moe").whole.architecture.router
    assert rule.normalized
    scores = torch.tensor([[[0.3, 0.1]], [[0.2, 0.2]]])
    experts = torch.tensor([[[4, 1]], [[0, 3]]])
    yes = torch.ones(1, dtype=torch.bool)
    whole = ReusedRouting(experts, scores, yes, yes)
    routing = whole.replay(rule, torch.float32)(0)
    assert routing.experts.tolist() == [[4, 1]]
    assert np.allclose(routing.weights, [[0.75, 0.25]])
    assert not ReusedRouting(experts, scores, yes, ~yes).complete, "routers weigh the experts"


def test_reuse_is_named_and_means_nothing_where_no_token_runs_again() -> None:
    def gate(words: str) -> Any:
        return PolicyChoice.parse(gates, f"big-little:{words}").create(gates, 8)

    with pytest.raises(ImpossibleSetting, match=r"reuse is 'all'; it must be none \| experts"):
        gate("reuse=all")
    assert gate("reuse=routing").reuse == "routing"
    assert gate("reuse=routing,gamma=0").reuse == "none"
    assert gate("reuse=routing,k=8").reuse == "none"
