"""Does the GPU's kernel sample the tokens that the engine's own sampler samples with the same
numbers? Without a GPU in Triton's interpreter, which is slow: few rows then, thousands with one."""

from __future__ import annotations

import math
from random import Random

import pytest
import torch

pytest.importorskip("triton")

from moesaic.engine.sampling.candidates import candidates
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.kernels.gpu.sampling import TokenSampling
from moesaic.machines.real.forward_pass import GREEDY, RowSampling

pytestmark = pytest.mark.filterwarnings("ignore:overflow")  # a weight of 0
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
CLOSE = 2e-6  # of the distribution: so near must a number be to a border to lead elsewhere
ROUNDS = 150 if ON_GPU else 1
FILTERS: list[dict[str, float]] = [
    {},
    {"top_k": 40},
    {"top_p": 0.9},
    {"min_p": 0.05},
    {"top_k": 300, "top_p": 0.5},
    {"top_k": 5, "min_p": 0.3},
    {"top_p": 0.99, "min_p": 0.01},
    {"top_k": 40, "top_p": 0.9, "min_p": 0.02},
]


def params_of(row: RowSampling) -> SamplingParams:
    return SamplingParams(
        temperature=row.temperature, top_k=row.top_k, top_p=row.top_p, min_p=row.min_p
    )


def sampled(logits: torch.Tensor, rows: list[RowSampling], usual: int | None = None) -> list[int]:
    vocabulary = logits.shape[1]
    words = torch.tensor([row.words(vocabulary) for row in rows], dtype=torch.float64)
    kernel = TokenSampling(len(rows), usual or len(rows), vocabulary, DEVICE)
    given = logits.to(DEVICE), words.to(DEVICE)
    first = kernel.launch(*given).tolist()
    if ON_GPU:  # a second time with what the first has left
        assert kernel.launch(*given).tolist() == first
    found: list[int] = first
    return found


def tokens_near(logits: torch.Tensor, row: RowSampling) -> set[int]:
    """What the engine samples with the row's number, and with those next to it."""
    numbers = [row.number + change for change in (0.0, -CLOSE, CLOSE)]
    (group,) = candidates(logits.float()[None], [params_of(row)])
    return {group.draw([min(max(number, 0.0), 1 - 2**-53)])[0] for number in numbers}


def row_with(random: Random, **filters: float) -> RowSampling:
    params = SamplingParams(temperature=random.uniform(0.05, 3.0), **filters)  # type: ignore[arg-type]
    return RowSampling(
        random.random(), params.temperature, params.top_k, params.top_p, params.min_p
    )


@pytest.mark.parametrize("vocabulary", [50, 9000])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_tokens_are_those_of_the_host(vocabulary: int, scale: float) -> None:
    random = Random(f"{vocabulary} {scale}")
    exact = total = 0
    for number in range(ROUNDS):
        seed = torch.Generator().manual_seed(number)
        rows = [row_with(random, **each) for each in FILTERS]
        logits = scale * torch.randn(len(rows), vocabulary, generator=seed) + random.gauss(0, 9)
        logits = logits.bfloat16()
        for row, token, mine in zip(rows, sampled(logits, rows), logits, strict=True):
            near = tokens_near(mine, row)
            assert token in near, (number, row)
            exact += len(near) == 1
            total += 1
    assert exact / total > 0.8  # and most of them are not near a border


@pytest.mark.skipif(not ON_GPU, reason="needs a GPU: the interpreter takes too long")
@pytest.mark.parametrize("filters", FILTERS)
def test_tokens_of_a_large_vocabulary_are_those_of_the_host(filters: dict[str, float]) -> None:
    random, seed = Random(1), torch.Generator().manual_seed(1)
    logits = (2.2 * torch.randn(70, 151_936, generator=seed)).bfloat16()
    logits[:, :200] += torch.linspace(14, 0, 200).bfloat16()
    rows = [row_with(random, **filters) for _ in logits]
    for row, token, mine in zip(rows, sampled(logits, rows), logits, strict=True):
        assert token in tokens_near(mine, row), row


def test_greedy_rows_take_the_first_of_the_best_beside_rows_that_draw() -> None:
    """Three rows where two are counted at a time; 0 and -0 are equals."""
    logits = torch.zeros(3, 600).bfloat16()
    logits[:, 100:] = -1.0
    logits[0, 5:9] = torch.tensor([-0.0, 7.0, 7.0, 3.0]).bfloat16()
    logits[2, :3] = -0.0
    drawing = RowSampling(0.995, 1e-3, 0, 1.0, 0.0)
    assert sampled(logits, [GREEDY, drawing, GREEDY], usual=2) == [6, 99, 0]


@pytest.mark.parametrize("row", [GREEDY, RowSampling(0.3, 0.7, 0, 1.0, 0.0)])
def test_logits_that_are_not_finite_give_no_token(row: RowSampling) -> None:
    logits = torch.zeros(5, 70).bfloat16()
    logits[0, 3] = math.nan
    logits[1, 3] = math.inf
    logits[2] = -math.inf
    logits[3, 1:] = -math.inf
    logits[4].view(torch.int16)[2] = -1  # NaN with a sign
    assert sampled(logits, [row] * 5) == [-1, -1, -1, 0, -1]


def test_equals_are_drawn_by_id_and_top_p_stops_among_them() -> None:
    logits = torch.full((9, 2100), -3.0).bfloat16()
    logits[:, 90:2000:100] = 1.0  # twenty equals
    ids = list(range(90, 2000, 100))
    rows = [RowSampling((each + 0.5) / 9, 1e-2, 0, 0.43, 0.0) for each in range(9)]
    assert sampled(logits, rows) == ids[:9]  # 0.43 * 20 lies in the ninth


def test_rows_that_are_not_used_keep_what_they_had() -> None:
    kernel = TokenSampling(2, 2, 64, DEVICE)
    words = torch.zeros(2, 6, dtype=torch.float64)
    words[0] = torch.tensor(GREEDY.words(64), dtype=torch.float64)
    logits = torch.arange(128).view(2, 64).bfloat16()
    assert kernel.launch(logits.to(DEVICE), words.to(DEVICE)).tolist() == [63, 0]
