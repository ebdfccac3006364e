"""Is another model known as another one, wherever it differs, and a moved one as the same?"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

pytest.importorskip("msgspec")

from moesaic.models.bundled_model import model_path
from moesaic.serve.batch.model_digest import model_digest

WEIGHTS = "model.safetensors"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_path(None), tmp_path / "model"))


def test_a_moved_model_is_the_same(model: Path) -> None:
    before = model_digest(model)
    assert before == model_digest(Path(model_path(None)))
    (model / "README.md").write_text("other words")
    assert model_digest(model.rename(model.with_name("moved"))) == before


@pytest.mark.parametrize(
    "name", ["config.json", "tokenizer.json", "generation_config.json", "tokenizer_config.json"]
)
def test_a_small_file_that_was_changed_makes_another_model(model: Path, name: str) -> None:
    before = model_digest(model)
    with (model / name).open("a") as file:
        file.write(" ")
    assert model_digest(model) != before


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_other_weights_of_the_same_size_make_another_model(model: Path, share: float) -> None:
    before, weights = model_digest(model), model / WEIGHTS
    size = weights.stat().st_size
    with weights.open("r+b") as file:
        file.seek(min(int(share * size), size - 8))
        file.write(b"\1\2\3\4\5\6\7\x08")
    assert model_digest(model) != before
    os.truncate(weights, size - 1)
    assert model_digest(model) != before
