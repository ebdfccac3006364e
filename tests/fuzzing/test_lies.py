"""A sample of `make fuzz`: are files with valid headers and forbidden contents refused?"""

from __future__ import annotations

import pytest

from fuzzing.fuzz import LIES, fuzz
from moesaic.core import parsing

FILES = 60  # of each format


@pytest.mark.parametrize("name", LIES)
def test_a_sample_of_every_format(name: str) -> None:
    outcome = fuzz(name, range(FILES))
    assert outcome.failures == []
    assert 0 < outcome.read < FILES, "some are allowed, most are not"


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("lying-tensors", "moesaic.models.checkpoints.safetensors_header._check_coverage"),
        ("lying-index", "moesaic.models.checkpoints.checkpoint.Checkpoint._check_places"),
        ("lying-tokenizer", "moesaic.models.text.tokenizer._refuse_shared_ids"),
        ("lying-tokenizer", "moesaic.models.text.tokenizer.check_added_ids"),
        ("lying-trace", "moesaic.workloads.reader.check_block"),
    ],
)
def test_a_reader_without_a_check_is_noticed(
    name: str, check: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, lambda *_: None)
    found = fuzz(name, range(FILES)).failures
    assert any(failure.what.startswith("SilentlyRead") for failure in found)


def test_repeated_keys_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "_table", dict)
    found = fuzz("lying-tensors", range(FILES)).failures
    assert any("a name twice" in failure.what for failure in found)
