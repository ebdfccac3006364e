"""Do the quality figures agree with torch's own functions and with distributions whose figures
are known?"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from small_llms import llm
from torch.nn import functional

import stock
from moesaic.core.errors import BrokenModel, ImpossibleSetting
from moesaic.lab.quality import expert_quality
from moesaic.lab.quality.expert_quality import (
    LogitsComparison,
    compare,
    logits_on_disk,
    text_logits,
)
from stock_text import prompt, stock_logits

torch.set_num_threads(1)


def logits(tokens: int, vocabulary: int, seed: int) -> torch.Tensor:
    return 3.0 * torch.randn(
        tokens, vocabulary, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def log_rows(*rows: list[float]) -> torch.Tensor:
    """Logits of given distributions."""
    return torch.tensor(rows, dtype=torch.float64).log()


def test_figures_are_those_of_torch() -> None:
    reference = logits(150, 40, 0)
    other = reference + 0.3 * logits(150, 40, 1)
    targets = torch.arange(150) % 40
    got = compare(reference, other, targets)
    ours, theirs = (functional.log_softmax(each, -1) for each in (reference, other))
    kl = functional.kl_div(theirs, ours, log_target=True, reduction="none").sum(-1)
    assert got.tokens == 150
    assert got.mean_kl == pytest.approx(kl.mean().item(), rel=1e-9)
    p99 = np.percentile(kl.numpy(), 99, method="inverted_cdf")
    assert got.p99_kl == pytest.approx(p99, rel=1e-9)
    assert got.same_top1 == (ours.argmax(-1) == theirs.argmax(-1)).double().mean().item()
    assert 0.1 < got.same_top1 < 0.9
    for each, perplexity in (
        (reference, got.reference_perplexity),
        (other, got.other_perplexity),
    ):
        expected = functional.cross_entropy(each, targets).exp().item()
        assert perplexity == pytest.approx(expected, rel=1e-9)


def test_a_coin_and_a_loaded_coin() -> None:
    """By hand; and which of the two is the reference matters."""
    fair, loaded = log_rows([0.5, 0.5]), log_rows([0.25, 0.75])
    there = compare(fair, loaded, torch.tensor([0]))
    back = compare(loaded, fair, torch.tensor([0]))
    assert there.mean_kl == pytest.approx(0.5 * math.log(2) + 0.5 * math.log(2 / 3))
    assert back.mean_kl == pytest.approx(0.25 * math.log(1 / 2) + 0.75 * math.log(3 / 2))
    assert there.reference_perplexity == pytest.approx(2)
    assert there.other_perplexity == pytest.approx(4)


def test_equal_logits_are_no_loss_at_all() -> None:
    same = logits(70, 30, 2)
    got = compare(same, same + 5.0, torch.zeros(70, dtype=torch.int64))
    assert got.mean_kl < 1e-14
    assert got.same_top1 == 1.0
    assert got.reference_perplexity == pytest.approx(got.other_perplexity, rel=1e-12)


def test_small_differences_are_not_lost_in_rounding() -> None:
    """Moving logits by a small d costs var(d) / 2: here 5e-13, far below fp32's rounding."""
    reference = torch.zeros(1, 2, dtype=torch.float64)
    other = torch.tensor([[1e-6, -1e-6]], dtype=torch.float64)
    assert compare(reference, other, torch.tensor([0])).mean_kl == pytest.approx(5e-13, rel=1e-3)


def test_the_99th_percentile_leaves_one_in_a_hundred_out() -> None:
    """Token i has KL(certain || certain with probability exp(-i)) = i."""
    certain = log_rows([1.0, 0.0]).repeat(100, 1)
    costs = torch.arange(1, 101, dtype=torch.float64)
    other = torch.stack((-costs, torch.log1p(-torch.exp(-costs))), dim=1)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    got = compare(certain, other[order], torch.zeros(100, dtype=torch.int64))
    assert got.p99_kl == pytest.approx(99)
    assert got.mean_kl == pytest.approx(50.5)
    assert got.other_perplexity == pytest.approx(math.exp(50.5))


def test_impossible_tokens_count_as_the_formula_says() -> None:
    masked, open_ = log_rows([0.5, 0.5, 0.0]), log_rows([0.25, 0.25, 0.5])
    target = torch.tensor([2])
    got = compare(masked, open_, target)
    assert got.mean_kl == pytest.approx(math.log(2))
    assert got.reference_perplexity == math.inf
    assert compare(open_, masked, target).mean_kl == math.inf
    assert compare(masked, masked, torch.tensor([0])).mean_kl == 0.0


def test_a_hopeless_model_has_infinite_perplexity_not_an_error() -> None:
    hopeless = torch.tensor([[0.0, 2000.0]])
    assert compare(hopeless, hopeless, torch.tensor([0])).other_perplexity == math.inf


def test_nan_is_not_hidden() -> None:
    broken = torch.tensor([[math.nan, 0.0]])
    got = compare(torch.zeros(1, 2), broken, torch.tensor([0]))
    assert math.isnan(got.mean_kl)
    assert math.isnan(got.p99_kl)
    assert math.isnan(got.other_perplexity)
    assert got.reference_perplexity == pytest.approx(2)


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16])
def test_chunks_add_up_to_the_whole(precision: torch.dtype) -> None:
    reference, other = (logits(200, 50, seed).to(precision) for seed in (3, 4))
    targets = torch.arange(200) % 50
    tally = LogitsComparison()
    for start, end in ((0, 1), (1, 130), (130, 130), (130, 200)):
        tally.add(reference[start:end], other[start:end], targets[start:end])
    got, whole = tally.result(), compare(reference, other, targets)
    assert (got.tokens, got.same_top1, got.p99_kl) == (200, whole.same_top1, whole.p99_kl)
    assert got.mean_kl == pytest.approx(whole.mean_kl, rel=1e-12)
    assert got.other_perplexity == pytest.approx(whole.other_perplexity, rel=1e-12)


def test_nothing_to_compare_is_said() -> None:
    with pytest.raises(ImpossibleSetting, match="longer"):
        LogitsComparison().result()
    none = torch.empty(0, 5)
    with pytest.raises(ImpossibleSetting, match="longer"):
        compare(none, none, torch.empty(0, dtype=torch.int64))


def test_logits_of_different_texts_are_noticed() -> None:
    with pytest.raises(AssertionError):
        compare(torch.zeros(3, 5), torch.zeros(3, 6), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(AssertionError):
        compare(torch.zeros(3, 5), torch.zeros(3, 5), torch.zeros(4, dtype=torch.int64))


# Do the logits of a text come in pieces, in order, and can more be kept than there is memory?


@pytest.mark.parametrize(
    ("window", "max_step_tokens"), [(100, 100), (100, 7), (16, 7), (16, 16), (1, 5)]
)
def test_pieces_are_the_stock_models_logits(window: int, max_step_tokens: int) -> None:
    saved, tokens = stock.saved("olmoe"), prompt(42)
    with llm(saved.folder, max_sequences=1) as model:
        pieces = list(text_logits(model.model.runner, tokens, window, max_step_tokens))
        assert model.model.runner.cache.length(0) == 0
    assert max(len(piece.logits) for piece in pieces) <= max_step_tokens
    starts = [piece.start for piece in pieces]
    assert starts == [sum(len(p.logits) for p in pieces[:i]) for i in range(len(pieces))]
    assert torch.cat([piece.targets for piece in pieces]).tolist() == tokens[1:]
    windows = [tokens[i : min(i + window, 41)] for i in range(0, 41, window)]
    theirs = torch.cat([stock_logits(saved.model, part)[0] for part in windows])
    ours = torch.cat([piece.logits for piece in pieces])
    assert (ours - theirs).abs().max() < 1e-4


def test_a_wide_vocabulary_makes_short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_quality, "_PIECE_BYTES", 97 * 4 * 3 + 1)
    with llm(stock.saved("olmoe").folder, max_sequences=1) as model:
        pieces = list(text_logits(model.model.runner, prompt(9), 100, 100))
    assert [len(piece.logits) for piece in pieces] == [3, 3, 2]


def test_a_broken_model_is_no_measurement() -> None:
    with llm(stock.saved("olmoe").folder) as model:
        with torch.inference_mode():
            model.model.runner.decoder.embedding[3] = float("nan")
        with pytest.raises(BrokenModel, match="NaN or infinite"):
            list(text_logits(model.model.runner, [1, 2, 3, 4, 5], 100, 100))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_kept_comes_back(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept, rows = logits_on_disk(5, 33, dtype), torch.randn(5, 33).to(dtype)
    for row in range(5):
        kept[row : row + 1].copy_(rows[row : row + 1])
    assert torch.equal(kept, rows)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_said_at_once() -> None:
    with pytest.raises(ImpossibleSetting, match=r"take 4000000\.00 GB on disk.*fewer tokens"):
        logits_on_disk(10**9, 10**6, torch.float32)
