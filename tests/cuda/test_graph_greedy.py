"""Do captured steps find the best tokens themselves, and does a sequence that breaks break alone?
Needs a GPU."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from test_graph_decoding import runner_of

from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece

SYSTEMS = [
    ("hybrid", "mrs", "impact"),
    ("best-split", "two-speed", "impact"),
    ("gpu-only", "lru", "none"),
    ("static-experts", "pinned", "none"),
]
BROKEN = 999


def steps(runner: Runner, best: bool, broken: bool = False) -> list[torch.Tensor]:
    how = GREEDY if best else None
    prompts = [Piece(i, [5 + i, 6, 7, 8 * i + 1], sampling=how) for i in range(3)]
    found = [runner.step(ForwardPass(prompts))]
    for number in range(5):
        tokens = [17 * number + i for i in range(3)]
        if broken and number >= 2:
            tokens[1] = BROKEN
        found.append(
            runner.step(
                ForwardPass([Piece(i, [token], sampling=how) for i, token in enumerate(tokens)])
            )
        )
        found.append(runner.step(ForwardPass([Piece(0, [40 + number], sampling=how)])))
    if best:  # what is not captured gives logits
        found = [each if each.ndim == 1 else each.argmax(-1) for each in found]
    return found


@pytest.mark.parametrize("names", SYSTEMS)
def test_the_best_tokens_are_those_of_the_logits(names: tuple[str, str, str]) -> None:
    first, second = (runner_of("qwen3-30b-a3b", "bf16", names) for _ in range(2))
    got, want = steps(first, best=True), steps(second, best=False)
    first.close()
    second.close()
    same = rows = 0
    for tokens, logits in zip(got, want, strict=True):
        assert tokens.dtype == torch.int64
        assert tokens.shape == logits.shape[:1]
        same += int((tokens == logits.float().argmax(-1)).sum())
        rows += len(tokens)
    assert same / rows > 0.85  # two runs may differ by rounding where two tokens nearly tie


@pytest.mark.parametrize("best", [True, False])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3"])
def test_a_sequence_that_breaks_does_so_alone(name: str, best: bool) -> None:
    names = ("hybrid", "mrs", "impact")
    whole, damaged = (runner_of(name, "bf16", names) for _ in range(2))
    with torch.inference_mode():
        damaged.decoder.embedding[BROKEN] = float("nan")
    want, got = steps(whole, best), steps(damaged, best, broken=True)
    whole.close()
    damaged.close()
    same = rows = 0
    for number, (mine, others) in enumerate(zip(got, want, strict=True)):
        for row in range(len(mine)):
            broken = row == 1 and number >= 5 and number % 2 == 1
            if best:
                assert (int(mine[row]) == -1) == broken
                close = int(mine[row]) == int(others[row])
            else:
                assert bool(mine[row].isfinite().all()) != broken
                error = (mine[row].float() - others[row].float()).norm()
                close = float(error / others[row].float().norm()) < 0.04
            if not broken:
                same += close
                rows += 1
    assert same / rows > 0.85
