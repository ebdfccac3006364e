"""A sample of `make fuzz`: does nothing but a MoesaicError escape from hostile files?"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from fuzzing import mutations
from fuzzing.examples import configs
from fuzzing.formats import formats
from fuzzing.fuzz import Failure, fuzz, write_example
from moesaic.core import parsing

FILES = 120  # of each format


@pytest.mark.parametrize("name", formats())
def test_a_sample_of_every_format(name: str) -> None:
    outcome = fuzz(name, range(FILES))
    assert outcome.failures == []
    assert outcome.files == FILES


@pytest.mark.parametrize("name", formats())
def test_the_examples_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutations of files that are wrong anyway would find little."""

    def as_it_is(content: bytes, rng: random.Random) -> bytes:
        return content

    def as_text(text: str, rng: random.Random) -> bytes:
        return text.encode()

    def as_json(value: object, rng: random.Random) -> bytes:
        return json.dumps(value).encode()

    def joined(pieces: Sequence[bytes], rng: random.Random) -> bytes:
        return b"".join(pieces)

    monkeypatch.setattr("fuzzing.formats.mutate_bytes", as_it_is)
    monkeypatch.setattr("fuzzing.formats.mutate_pieces", joined)
    monkeypatch.setattr("fuzzing.formats.mutate_json", as_json)
    monkeypatch.setattr("fuzzing.formats.mutate_toml", as_text)
    monkeypatch.setattr("fuzzing.formats.mutate_template", as_text)
    made = formats()[name]
    for number in range(len(configs()) * 3):
        folder = tmp_path / str(number)
        folder.mkdir()
        made.write(folder, random.Random(number))
        made.read(folder)


def test_a_file_can_be_made_again(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    for folder in (first, second):
        folder.mkdir()
        write_example("config", 17, folder)
    assert (first / "config.json").read_bytes() == (second / "config.json").read_bytes()


def test_a_reader_without_bounds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "_check", lambda *_, **__: None)
    monkeypatch.setattr(mutations, "VALUES", ("NaN",))
    found = fuzz("trace", range(100)).failures
    assert any("not JSON compliant" in failure.what for failure in found)


def test_a_slow_file_is_a_failure() -> None:
    (failure,) = fuzz("quality", range(1), slowest_s=0.0).failures
    assert failure == Failure("quality", 0, failure.what)
    assert failure.what.startswith("took ")
