"""Do captured steps sample the tokens that the host samples from their logits? Needs a GPU."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from executors import captured_of
from test_graph_decoding import runner_of

from moesaic.engine.runner import Runner
from moesaic.engine.sampling.candidates import candidates
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.machines.captured.step_ending import Ending
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece, RowSampling

NAMES = ("hybrid", "mrs", "impact")
BROKEN = 999
NEAR = 0.03  # of the distribution: by chance some 6 % of the tokens fit
DRAWING = [
    RowSampling(0.31, 0.7, 0, 1.0, 0.0),
    RowSampling(0.85, 0.7, 40, 0.9, 0.0),
    RowSampling(0.6, 1.2, 0, 0.95, 0.02),
]
MIXED = [DRAWING[1], GREEDY, DRAWING[0]]


def fits(token: int, logits: torch.Tensor, how: RowSampling) -> bool:
    """Whether the host would sample this token with a number near the given one. Two runs differ by
    rounding, and tokens that weigh nearly the same may change places."""
    params = SamplingParams(
        temperature=how.temperature, top_k=how.top_k, top_p=how.top_p, min_p=how.min_p
    )
    (group,) = candidates(logits.float()[None], [params])
    weights = group.weights[0].double()
    ids = list(range(len(weights))) if group.ids is None else group.ids[0].tolist()
    if token not in ids:
        return False
    at = ids.index(token)
    end, total = weights.cumsum(0)[at], weights.sum()
    start = end - weights[at]
    return bool(weights[at] > 0) and bool(start / total - NEAR <= how.number <= end / total + NEAR)


def steps(
    runner: Runner, how: Sequence[RowSampling | None], broken: bool = False
) -> list[torch.Tensor]:
    """Three prompts, then steps of three sequences and of one in turn."""
    prompts = [Piece(i, [5 + i, 6, 7, 8 * i + 1], sampling=how[i]) for i in range(3)]
    found = [runner.step(ForwardPass(prompts))]
    for number in range(5):
        tokens = [17 * number + i for i in range(3)]
        if broken and number >= 2:
            tokens[1] = BROKEN
        given = [Piece(i, [token], sampling=how[i]) for i, token in enumerate(tokens)]
        found.append(runner.step(ForwardPass(given)))
        found.append(runner.step(ForwardPass([Piece(0, [40 + number], sampling=how[0])])))
    return found


@pytest.mark.parametrize("how", [DRAWING, MIXED], ids=["drawing", "mixed"])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3"])
def test_the_tokens_are_those_of_the_logits(name: str, how: list[RowSampling]) -> None:
    first, second = (runner_of(name, "bf16", NAMES) for _ in range(2))
    got, want = steps(first, how), steps(second, [None] * 3)
    first.close()
    second.close()
    same = rows = 0
    for tokens, logits in zip(got, want, strict=True):
        assert tokens.dtype == torch.int64
        assert tokens.shape == logits.shape[:1]
        for row, token in enumerate(tokens.tolist()):
            same += fits(token, logits[row], how[row])
            rows += 1
    assert same / rows > 0.85


def test_graphs_are_captured_when_they_are_wanted() -> None:
    """And a step that needs logits still has them."""
    runner = runner_of("qwen3-30b-a3b", "bf16", NAMES)
    first = runner.step(ForwardPass([Piece(0, [3], sampling=GREEDY)]))
    sampled = [runner.step(ForwardPass([Piece(0, [4], sampling=DRAWING[0])])) for _ in range(2)]
    assert first.shape == sampled[0].shape == sampled[1].shape == (1,)
    (captured,) = captured_of(runner)._steps._decoding.values()
    assert set(captured.graphs) == {Ending.GREEDY, Ending.SAMPLED}
    assert runner.step(ForwardPass([Piece(0, [5])])).shape == (1, 1000)
    assert set(captured.graphs) == set(Ending)
    runner.close()


def test_a_sequence_that_breaks_does_so_alone() -> None:
    runner = runner_of("qwen3-30b-a3b", "bf16", NAMES)
    with torch.inference_mode():
        runner.decoder.embedding[BROKEN] = float("nan")
    for number, tokens in enumerate(steps(runner, MIXED, broken=True)):
        for row, token in enumerate(tokens.tolist()):
            assert (token == -1) == (row == 1 and number >= 5 and number % 2 == 1)
    runner.close()


@pytest.mark.parametrize("filters", [(0, 1.0, 0.0), (300, 0.9, 0.0)])
def test_every_number_has_its_tokens(filters: tuple[int, float, float]) -> None:
    """The same step with numbers from 0 to 1."""
    runner = runner_of("qwen3-30b-a3b", "bf16", NAMES)
    rows = [RowSampling((each + 0.5) / 40, 1.0, *filters) for each in range(40)]
    drawn = []
    for how in rows:
        drawn.append(int(runner.step(ForwardPass([Piece(0, [7], sampling=how)]))[0]))
        runner.free_slot(0)
    logits = runner.step(ForwardPass([Piece(0, [7])]))[0]
    runner.close()
    assert sum(fits(token, logits, how) for token, how in zip(drawn, rows, strict=True)) >= 36
    assert len(set(drawn)) > 20
