"""Do the logits of a text come in pieces, in order, and can more be kept than there is memory?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_llms import llm

import stock
from moesaic.core.errors import BrokenModel, ImpossibleSetting
from moesaic.lab.quality import expert_quality
from moesaic.lab.quality.expert_quality import logits_on_disk, text_logits
from stock_text import prompt, stock_logits


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
