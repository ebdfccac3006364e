"""Does a hostile JSON or TOML text become an error that names the file, and nothing else?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from moesaic.core.errors import FileError
from moesaic.core.parsing import (
    MAX_DEPTH,
    parse_json,
    parse_toml,
    read_bounded,
    read_json,
    short,
)

DEEPEST = MAX_DEPTH - 1  # lists around a number


class Bad(FileError):
    kind = "thing"


def refusal(text: str | bytes, **options: bool) -> str:
    with pytest.raises(Bad) as caught:
        parse_json(text, Bad, "a.json", "header", **options)
    said = str(caught.value)
    assert said.startswith("thing 'a.json': header")
    return said


def toml_refusal(text: str | bytes) -> str:
    with pytest.raises(Bad) as caught:
        parse_toml(text, Bad, "a.toml")
    return str(caught.value)


@pytest.mark.parametrize("depth", [DEEPEST + 1, 500, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_json(depth: int, opening: str, closing: str) -> None:
    assert "nested at most 64 levels" in refusal(opening * depth + "1" + closing * depth)
    fits = opening * DEEPEST + "1" + closing * DEEPEST
    assert parse_json(fits, Bad, "a.json") == json.loads(fits)


@pytest.mark.parametrize("digits", [40, 4000, 5000, 100_000])
def test_long_integers(digits: int) -> None:
    where = "a.0: expected an integer of at most 128 bits" if digits <= 4300 else "128 bits"
    assert where in refusal('{"a": [-' + "9" * digits + "]}")
    assert where in toml_refusal("a = [" + "9" * digits + "]")
    assert (
        parse_json("9" * 38, Bad, "") == parse_toml("a = " + "9" * 38, Bad, "")["a"] == 10**38 - 1
    )


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(number: str) -> None:
    text = '{"a": [{"b": ' + number + "}]}"
    assert "header.a.0.b: expected a finite number" in refusal(text, finite=True)
    assert "a" in parse_json(text, Bad, "a.json")


@pytest.mark.parametrize("text", ['{"a": "x\\ud800y"}', '{"\\uDFFF": 1}', '[["\\ud800\\ud800"]]'])
def test_halves_of_surrogate_pairs(text: str) -> None:
    said = refusal(text)
    assert "half of a surrogate pair" in said
    assert said.isprintable()
    assert parse_json('["\\ud83d\\ude00"]', Bad, "") == ["\U0001f600"]


def test_something_else() -> None:
    assert "expected JSON" in refusal("{]")
    assert "expected JSON in UTF-8" in refusal(b'{"a": "\xff"}')
    assert "expected TOML" in toml_refusal("a = = 1")
    assert "expected TOML in UTF-8" in toml_refusal(b"\xff")


@pytest.mark.parametrize(
    "text",
    ["a = " + "[" * 100_000, "a = " + "[" * 70 + "]" * 70, ".".join("a" * 80) + " = 1"],
)
def test_deep_toml(text: str) -> None:
    assert "nested at most 64 levels" in toml_refusal(text)


def test_keys_with_many_dots_take_no_time() -> None:
    assert "line 2: expected TOML: more than 100 dots" in toml_refusal("b = 1\n" + "a." * 300_000)


def test_files_have_a_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"12345")
    assert read_bounded(file, Bad, 5) == b"12345"
    with pytest.raises(Bad, match="expected at most 4 bytes"):
        read_bounded(file, Bad, 4)
    assert read_json(file, Bad) == 12345


def test_messages_stay_short_and_printable() -> None:
    assert len(short("x" * 10**6)) <= 80
    assert len(short(list(range(1000)))) <= 80
    assert short("\ud800\x1b") == r"'\ud800\x1b'"
    said = str(Bad("p", "\x1b[31m\ud800", "x" * 10_000))
    assert said.isprintable()
    assert len(said) < 2500


@pytest.mark.parametrize("text", ['{"a": 1, "b": 2, "a": 1}', '{"c": [{"a": 1, "a": 2}]}'])
def test_a_repeated_key(text: str) -> None:
    """Readers differ in which of the two they take."""
    assert "header.a: this key is in the same JSON object twice" in refusal(text)
    with pytest.raises(Bad, match=r"'a\.json': a: this key"):
        parse_json(text, Bad, "a.json")
