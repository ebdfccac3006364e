"""Files of learned expert uses: are they read as they were written, and refused where they are not
what they should be?"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesaic.core.errors import BadPlacement, ImpossibleSetting, MoesaicError
from moesaic.policies import expert_profile
from moesaic.policies.expert_profile import (
    KEPT_TOKENS,
    ExpertProfile,
    ProfiledModel,
    add_to_file,
    nothing_known,
    read_if_there,
    read_profile,
)
from moesaic.policies.shape import Shape

MODEL = ProfiledModel("some/model", Shape(2, 3, 2))


def known(tokens: int = 4) -> ExpertProfile:
    """Every token used experts 0 and 1 in layer 0, 1 and 2 in layer 1."""
    return ExpertProfile(MODEL, tokens, tokens * np.array([[1, 1, 0], [0, 1, 1]]))


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "uses.json"
    assert read_if_there(path, MODEL) is None
    known().write(path)
    found = read_profile(path, MODEL)
    assert (found.model, found.tokens) == (MODEL, 4)
    assert (found.counts == known().counts).all()
    assert found.counts.dtype == np.int64


def test_runs_add_up_and_old_ones_fade(tmp_path: Path) -> None:
    path = tmp_path / "uses.json"
    for _ in range(3):
        add_to_file(path, known())
    assert read_profile(path, MODEL).tokens == 12
    assert (read_profile(path, MODEL).counts == known(12).counts).all()
    changed = ExpertProfile(MODEL, KEPT_TOKENS, KEPT_TOKENS * np.array([[0, 1, 1], [1, 1, 0]]))
    half = ExpertProfile(MODEL, KEPT_TOKENS // 2, changed.counts // 2)
    both = known(KEPT_TOKENS).followed_by(half)
    assert both.tokens == KEPT_TOKENS
    assert (2 * both.counts / KEPT_TOKENS == [[1, 2, 1], [1, 2, 1]]).all()
    assert (known(KEPT_TOKENS).followed_by(changed).counts == changed.counts).all()
    longer = nothing_known(MODEL).followed_by(known(3 * KEPT_TOKENS))
    assert (longer.counts == known(KEPT_TOKENS).counts).all()


def changed(**fields: Any) -> str:
    shape = {"layers": 2, "experts": 3, "top_k": 2}
    whole = {"format": expert_profile.FORMAT, "model": MODEL.name, **shape, "tokens": 1}
    whole |= {"counts": [[1, 1, 0], [0, 1, 1]]} | fields
    return json.dumps({name: value for name, value in whole.items() if value is not None})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (changed(model="other/model"), "it is of other/model (2 MoE layers, 3 experts, top-2)"),
        (changed(top_k=1), "give each model a file of its own"),
        (changed(layers=True), "and this is some/model"),
        (changed(format="moesaic-quality-1"), "expected 'moesaic-placement-1'"),
        (changed(tokens=None), "this field is missing"),
        (changed(tokens=-1), "expected a number of tokens, found -1"),
        (changed(counts=[[1, 1, 0]]), "2 lists of 3 whole numbers"),
        (changed(counts=[[1, 1, 0], [0, 1, -1]]), "the next run begins a new one"),
        (changed(counts=[[1, 1, 0], [0, 1, 1.5]]), "2 lists of 3 whole numbers"),
        (changed(counts=[[1, 1, 0], [0, 1, 1 << 70]]), "2 lists of 3 whole numbers"),
        (changed()[:50], "expected JSON"),
        ("[]", "expected 'moesaic-placement-1'"),
    ],
)
def test_what_is_not_of_this_model_or_damaged_is_refused(
    tmp_path: Path, content: str, words: str
) -> None:
    path = tmp_path / "uses.json"
    path.write_text(content)
    with pytest.raises(BadPlacement) as caught:
        read_if_there(path, MODEL)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(BadPlacement):
        add_to_file(path, known())
    assert path.read_text() == content, "nothing is written over what is not understood"


def test_a_name_without_a_file_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    with pytest.raises(ImpossibleSetting, match="there is no such file"):
        read_profile(tmp_path / "uses.json", MODEL)
    with pytest.raises(MoesaicError, match="is a directory"):
        read_profile(tmp_path, MODEL)


def test_an_interruption_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "uses.json"
    known().write(path)

    def interrupted(*given: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        add_to_file(path, known())
    monkeypatch.undo()
    assert read_profile(path, MODEL).tokens == 4
    assert os.listdir(tmp_path) == ["uses.json"]
