"""Is text that comes in pieces the text that comes at once, and does it come as soon as it can?"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from moesaic.models.text.detokenizer import Detokenizer
from moesaic.models.text.tokenizer import Tokenizer
from small_tokenizers import BYTES, ENGLISH, KINDS, OTHERS, save

# Past the vocabulary too: the models' own is often padded, and untrained ones choose anything.
IDS = st.lists(st.integers(0, 500), max_size=40)
BYTE_IDS = st.lists(st.integers(5, 5 + 256), max_size=12)  # in all kinds, after the special tokens
TEXTS = st.text(alphabet=st.sampled_from(" \n ab.é路由器😀👍🏽\u200d\u0301न\ufffd0"), max_size=30)


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    kind: str = request.param
    return Tokenizer.open(save(tmp_path_factory.mktemp("tokenizer"), kind))


@pytest.fixture(scope="module")
def spelling(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.open(save(tmp_path_factory.mktemp("tokenizer"), "metaspace"))


def pieces(tokenizer: Tokenizer, ids: Iterable[int], skip_special: bool = True) -> list[str]:
    """What each token gave, and last what was left."""
    stream = Detokenizer(tokenizer, skip_special)
    return [*(stream.feed(token_id) for token_id in ids), stream.finish()]


@pytest.mark.parametrize("text", [*ENGLISH, *OTHERS])
def test_real_text(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert "".join(pieces(tokenizer, ids)) == tokenizer.decode(ids) == text


@given(text=TEXTS, skip=st.booleans())
def test_any_text(tokenizer: Tokenizer, text: str, skip: bool) -> None:
    ids = [*tokenizer.encode(text), 2, *tokenizer.encode(text)]
    assert "".join(pieces(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@given(ids=IDS, skip=st.booleans())
def test_any_tokens(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    assert "".join(pieces(tokenizer, ids, skip)) == tokenizer.decode(ids, skip)


@given(ids=st.lists(BYTE_IDS, max_size=4), between=st.integers(262, 400))
@example(ids=[[5 + byte for byte in "路".encode()], [5 + 0xE8]], between=300)
def test_characters_cut_anywhere(tokenizer: Tokenizer, ids: list[list[int]], between: int) -> None:
    flat = [token_id for run in ids for token_id in (*run, between)]
    assert "".join(pieces(tokenizer, flat)) == tokenizer.decode(flat)
    assert "".join(pieces(tokenizer, flat[:-1])) == tokenizer.decode(flat[:-1])


@pytest.mark.parametrize("text", ENGLISH)
def test_plain_text_is_never_held_back(tokenizer: Tokenizer, text: str) -> None:
    """Every piece is there as soon as its token is, accents included."""
    ids = [token_id for token_id in tokenizer.encode(text) if tokenizer.is_text(token_id)]
    given = pieces(tokenizer, ids)
    so_far = ["".join(given[: end + 1]) for end in range(len(ids))]
    whole = [tokenizer.decode(ids[: end + 1]) for end in range(len(ids))]
    assert [shown for shown in so_far if "\ufffd" in shown] == []
    assert so_far == [text.rstrip("\ufffd") for text in whole]


def test_a_character_appears_with_its_last_byte(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level"))
    ids = tokenizer.encode("ᚠ")  # not in the training text: three bytes, three tokens
    assert len(ids) == 3
    assert pieces(tokenizer, ids) == ["", "", "ᚠ", ""]


def test_a_spelled_run_appears_with_the_token_that_ends_it(spelling: Tokenizer) -> None:
    ids = spelling.encode("ᚠ.")[2:]  # after BOS and the hidden space
    assert pieces(spelling, ids) == ["", "", "", "ᚠ.", ""]


def test_bytes_that_are_no_character_are_not_held_for_ever(tmp_path: Path) -> None:
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level"))
    last_byte = tokenizer.encode("ᚠ")[-1]  # which begins no character
    assert pieces(tokenizer, [last_byte] * 6) == ["", *["\ufffd"] * 6]


def test_special_tokens_show_on_request(spelling: Tokenizer) -> None:
    ids = [*spelling.encode("a few experts"), 2]
    assert "".join(pieces(spelling, ids)) == "a few experts"
    assert "".join(pieces(spelling, ids, skip_special=False)) == "<s> a few experts</s>"


@pytest.mark.parametrize("kept", [(1,), (2,), (1, 2)])
def test_named_special_tokens_are_shown_alone(tokenizer: Tokenizer, kept: tuple[int, ...]) -> None:
    ids = [*tokenizer.encode("experts rest", special=False), 1, 2, 3, 1]
    shown = [token for token in ids if token in kept or token not in tokenizer.special]
    stream = Detokenizer(tokenizer, keep=frozenset(kept))
    text = "".join([*map(stream.feed, ids), stream.finish()])
    assert text == tokenizer.decode(shown, skip_special=False)


def test_the_next_text_starts_afresh(tokenizer: Tokenizer) -> None:
    stream = Detokenizer(tokenizer)
    ids = tokenizer.encode("experts rest 😀")
    for _ in range(2):
        assert "".join([*map(stream.feed, ids), stream.finish()]) == tokenizer.decode(ids)


@pytest.mark.parametrize("text", [ENGLISH[0] * 30, (OTHERS[0] + OTHERS[1]) * 20])
def test_work_per_token_does_not_grow(
    tokenizer: Tokenizer, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted in tokens that are decoded: on average, as a spelled run is looked at once."""
    ids = tokenizer.encode(text)
    decode, decoded = tokenizer.decode, []

    def counting(some: Iterable[int], skip_special: bool = True) -> str:
        decoded.append(len(list(some)))
        return decode(some, skip_special)

    monkeypatch.setattr(tokenizer, "decode", counting)
    pieces(tokenizer, ids)
    assert sum(decoded) <= 8 * len(ids)
    if not any(map(tokenizer.is_byte, ids)):
        assert max(decoded) <= 4


def test_spelled_bytes_are_recognised(spelling: Tokenizer, tmp_path: Path) -> None:
    assert [token_id for token_id in range(spelling.vocabulary) if spelling.is_byte(token_id)] == [
        *range(5, 5 + len(BYTES))
    ]
    other = Tokenizer.open(save(tmp_path, "byte-level"))
    assert not any(map(other.is_byte, range(other.vocabulary)))
