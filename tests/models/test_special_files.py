"""Is a pipe, a device, a directory or a file of the kernel refused as a model's file, at once?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import stock
from moesaic.core.errors import MoesaicError
from moesaic.models.open_model import open_model
from moesaic.models.text.tokenizer import Tokenizer
from small_tokenizers import save

MAKERS: dict[str, tuple[Callable[[Path], object], str]] = {
    "pipe": (os.mkfifo, "is a pipe, expected a regular file"),
    "directory": (Path.mkdir, "is a directory, expected a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "is a device, expected a regular file"),
    "broken link": (lambda path: path.symlink_to("gone"), "is a link to 'gone', which does not"),
    "memory": (lambda path: path.symlink_to("/proc/self/mem"), ""),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    shutil.copytree(stock.saved("mixtral").folder, made)
    return made


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "model.safetensors.index.json", "experts.moepack"]
)
def test_files_of_a_model(folder: Path, kind: str, name: str) -> None:
    make, words = MAKERS[kind]
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    with pytest.raises(MoesaicError) as caught:
        open_model(folder)
    said = str(caught.value)
    assert str(folder / name) in said
    unread = "this is not a safetensors file" if name == "model.safetensors" else "cannot be read:"
    assert (words or unread) in said


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize(
    "name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"]
)
def test_files_of_a_tokenizer(tmp_path: Path, kind: str, name: str) -> None:
    """One that is optional is not taken for absent."""
    make, words = MAKERS[kind]
    save(tmp_path, "byte-level")
    (tmp_path / name).unlink(missing_ok=True)
    make(tmp_path / name)
    with pytest.raises(MoesaicError) as caught:
        Tokenizer.open(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert (words or "cannot be read:") in str(caught.value)


def test_a_shard_that_the_index_names(tmp_path: Path) -> None:
    folder = stock.save(stock.saved("mixtral").model, tmp_path, max_shard_size="30KB")
    victim = sorted(folder.glob("model-*.safetensors"))[1]
    victim.unlink()
    os.mkfifo(victim)
    with pytest.raises(MoesaicError, match="is a pipe, expected a regular file"):
        open_model(folder)
