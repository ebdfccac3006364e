"""Is the model of the package there, small enough to be, and missed in one clear sentence?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from moesaic.core.errors import BadCheckpoint
from moesaic.models import bundled_model
from moesaic.models.bundled_model import NAME, default_model, model_path
from moesaic.workloads.bundled_traces import DEFAULT_MODEL

MOST_BYTES = 40e6  # what a repository can carry


def test_the_bundled_model_exists_and_is_small() -> None:
    files = [path for path in default_model().iterdir() if path.is_file()]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {path.name for path in files}
    assert sum(path.stat().st_size for path in files) <= MOST_BYTES


@pytest.mark.parametrize("nothing_else", [None, NAME, NAME.upper()])
def test_no_model_and_its_name_mean_it(nothing_else: str | None) -> None:
    assert model_path(nothing_else) == default_model()


def test_a_directory_is_itself(tmp_path: Path) -> None:
    assert model_path(str(tmp_path)) == tmp_path
    assert model_path(Path(NAME)) == Path(NAME)


def test_a_stripped_installation_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setattr(bundled_model, "_FOLDER", tmp_path)
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors: is missing.*install"):
        default_model()


def test_finding_it_takes_no_torch() -> None:
    words = "import sys; from moesaic.models.bundled_model import default_model; default_model()"
    check = f"{words}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", check], check=True)


def test_what_is_studied_where_no_model_is_named_is_the_model_that_answers() -> None:
    assert DEFAULT_MODEL == NAME
