"""Does each way a tokenizer's files can be wrong give one message with file and expectation?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moesaic.core.errors import BadTokenizer, ImpossibleSetting
from moesaic.models.text.tokenizer import Tokenizer
from small_tokenizers import save, trained, write


def complaint(folder: Path, vocab_size: int | None = None) -> str:
    with pytest.raises(BadTokenizer) as caught:
        Tokenizer.open(folder, vocab_size)
    return str(caught.value)


def test_no_tokenizer(tmp_path: Path) -> None:
    assert complaint(tmp_path) == f"tokenizer {str(tmp_path)!r}: file: expected tokenizer.json"
    (tmp_path / "tokenizer.model").write_bytes(b"")
    assert "found tokenizer.model, which must be converted first" in complaint(tmp_path)
    assert "expected tokenizer.json" in complaint(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"[]",
        b"\xff\xfe",
        b"version https://git-lfs.github.com/spec/v1\n",
        trained("byte-level").encode()[:5000],
        b'{"model": {"type": "Psychic"}}',
    ],
)
def test_a_file_that_is_something_else(tmp_path: Path, content: bytes) -> None:
    (save(tmp_path, "byte-level") / "tokenizer.json").write_bytes(content)
    said = complaint(tmp_path)
    assert str(tmp_path / "tokenizer.json") in said
    assert "cannot be read" in said
    assert "fetch it again" in said


def test_a_tokenizer_of_a_larger_model(tmp_path: Path) -> None:
    folder = save(tmp_path, "byte-level")
    said = complaint(folder, vocab_size=419)
    assert "vocabulary: has 420 tokens, the model knows 419" in said
    assert Tokenizer.open(folder, vocab_size=420).vocabulary == 420
    assert Tokenizer.open(folder, vocab_size=512).vocabulary == 420


def test_no_token_at_all(tmp_path: Path) -> None:
    fields = json.loads(trained("byte-level")) | {"added_tokens": []}
    fields["model"] |= {"vocab": {}, "merges": []}
    write(save(tmp_path, "byte-level", bos_token=None, eos_token=None) / "tokenizer.json", fields)
    assert "vocabulary: is empty" in complaint(tmp_path)


@pytest.mark.parametrize("name", ["tokenizer_config.json", "config.json", "generation_config.json"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"{", "expected JSON"),
        (b"[]", "expected a JSON object"),
        (b"\xff", "expected JSON in UTF-8"),
    ],
)
def test_a_broken_file_beside_it(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    (save(tmp_path, "byte-level") / name).write_bytes(content)
    said = complaint(tmp_path)
    assert str(tmp_path / name) in said
    assert expected in said


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("chat_template", 3),
        ("chat_template", ["a"]),
        ("chat_template", [{"name": "default"}]),
        ("chat_template", [{"name": "default", "template": 3}]),
        ("added_tokens_decoder", [1]),
        ("added_tokens_decoder", {"one": {"content": "a"}}),
        ("added_tokens_decoder", {"1": "a"}),
    ],
)
def test_a_malformed_field(tmp_path: Path, field: str, value: Any) -> None:
    said = complaint(save(tmp_path, "byte-level", **{field: value}))
    assert f"tokenizer_config.json': {field}: expected" in said


@pytest.mark.parametrize("value", ["2", [1, "2"], True, {"a": 1}, 2.0])
def test_an_end_that_is_no_token(tmp_path: Path, value: Any) -> None:
    folder = save(tmp_path, "byte-level")
    write(folder / "generation_config.json", {"eos_token_id": value})
    said = complaint(folder)
    assert "generation_config.json': eos_token_id: expected a token id or a list" in said


def test_text_that_is_not_unicode(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level"))
    with pytest.raises(ImpossibleSetting, match="not valid Unicode: character 2"):
        tokenizer.encode("ab\ud83d")


def test_two_tokens_with_one_id(tmp_path: Path) -> None:
    """The library would decode the id to either of them."""
    fields = json.loads(trained("byte-level"))
    fields["model"]["vocab"]["a"] = number = fields["model"]["vocab"]["b"]
    write(save(tmp_path, "byte-level") / "tokenizer.json", fields)
    assert f"vocabulary: 'a' and 'b' have the same id, {number}" in complaint(tmp_path)


def test_an_added_token_with_the_id_of_another(tmp_path: Path) -> None:
    """The library would use its own number for it, not the file's."""
    fields = json.loads(trained("byte-level"))
    used = fields["added_tokens"][0]["id"]
    fields["added_tokens"][0]["id"] = 7
    write(save(tmp_path, "byte-level") / "tokenizer.json", fields)
    said = complaint(tmp_path)
    assert "added_tokens: '<" in said
    assert f"is stated to be 7, but its place in the vocabulary is {used}" in said


@pytest.mark.parametrize("name", ["tokenizer_config.json", "generation_config.json"])
def test_a_repeated_key(tmp_path: Path, name: str) -> None:
    folder = save(tmp_path, "byte-level")
    (folder / name).write_text('{"eos_token_id": 1, "eos_token_id": 2}')
    said = complaint(folder)
    assert f"{name}': eos_token_id: this key is in the same JSON object twice" in said
