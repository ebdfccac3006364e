"""Is every token predicted once, from enough before it, with the stock model's surprise?"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_files import write_lines
from torch.nn import functional

from chat_models import talking
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.loading import load
from moesaic.lab.evaluation.evaluate import score_window
from moesaic.lab.evaluation.items import TextWindow, Unusable
from moesaic.lab.evaluation.text_task import text_items, windows
from moesaic.models.text.tokenizer import Tokenizer

TEXT = "The router of a mixture of experts sends every token to a few experts. Café! " * 3


def made(window: int, stride: int, text: str = TEXT) -> list[TextWindow]:
    return list(windows("text", text, Tokenizer.open(talking().folder), window, stride))


@pytest.mark.parametrize(("window", "stride"), [(16, 16), (16, 8), (16, 1), (16, 5), (10_000, 7)])
def test_every_token_is_predicted_once(window: int, stride: int) -> None:
    tokenizer = Tokenizer.open(talking().folder)
    expected = tokenizer.encode(TEXT, special=False)
    found = made(window, stride)
    assert [token for each in found for token in each.targets] == expected
    assert len({each.item for each in found}) == len(found)
    for number, each in enumerate(found):
        assert len(each.reads) <= window
        assert not number or len(each.reads) == window
        assert each.reads[len(each.reads) - len(each.targets) + 1 :] == each.targets[:-1]
        assert len(each.targets) <= (stride if number else window)
    assert sum(each.bytes for each in found) == pytest.approx(len(TEXT.encode()))
    assert sum(each.words for each in found) == pytest.approx(len(TEXT.split()))


def test_a_limit_counts_the_bytes_of_what_is_read() -> None:
    """Not their average over all of the text."""
    tokenizer = Tokenizer.open(talking().folder)
    text = TEXT + "é" * 500
    found = list(windows("text", text, tokenizer, 16, 8, limit=3))
    read = tokenizer.decode([token for each in found for token in each.targets])
    assert [each.targets for each in found] == [each.targets for each in made(16, 8, text)[:3]]
    assert text.startswith(read)
    assert sum(each.bytes for each in found) == pytest.approx(len(read.encode()))


def test_short_texts() -> None:
    assert made(8, 4, "") == []
    (only,) = made(8, 4, "a")
    assert (len(only.reads), len(only.targets)) == (1, 1)


@pytest.mark.parametrize("options", [{}, {"accelerator": "emulated", "checked": True}])
def test_the_surprise_is_the_stock_models(options: dict[str, object]) -> None:
    """Read in pieces smaller than a window."""
    settings = EngineSettings(
        dtype="fp32", threads=1, max_step_tokens=7, max_sequences=2, max_model_len=32
    )
    model = load(talking().folder, _with(settings, options))
    try:
        for each in made(32, 12):
            result = score_window(model, each)
            with torch.inference_mode():
                logits = talking().model(torch.tensor([each.reads])).logits[0]
            wanted = logits[-len(each.targets) :].double()
            loss = functional.cross_entropy(wanted, torch.tensor(each.targets), reduction="sum")
            assert result.loss == pytest.approx(loss.item(), rel=1e-4)
            assert result.tokens == len(each.targets)
    finally:
        model.close()


def _with(settings: EngineSettings, options: dict[str, object]) -> EngineSettings:
    from dataclasses import replace

    return replace(settings, **options)  # type: ignore[arg-type]


def test_lines_are_texts_of_their_own(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(talking().folder)
    lines = [{"text": TEXT}, {"title": "no text"}, {"text": "short"}]
    file = write_lines(tmp_path / "texts.jsonl.xz", lines)
    items = text_items(file, tokenizer, 32, 16)
    unusable = [item for item in items if isinstance(item, Unusable)]
    assert [item.why for item in unusable] == [f"{file}, line 2: the field 'text' is missing"]
    last = items[-1]
    assert isinstance(last, TextWindow)
    assert list(last.targets) == tokenizer.encode("short", special=False)
    few = text_items(file, tokenizer, 32, 16, limit=2)
    assert [item.item for item in few] == [item.item for item in items[:2]]
    past = next(number for number, item in enumerate(items) if isinstance(item, Unusable)) + 2
    assert text_items(file, tokenizer, 32, 16, limit=past) == items[:past]
