"""Does a parser give the same however text is cut, and keep all text whatever comes?"""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from format_answers import ANSWERS, Parsed, events_of, joined, parsed, text_of
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from moesaic.serve.formats.detect import choose
from moesaic.serve.formats.reasoning import MISTRAL, THINK

_WORDS = ("Let", "see.", "Paris", "print", "😀")
_PIECES = sorted(
    {
        *re.findall(r"<[^<>]*>|\[[A-Z_]+\]|[\w.]+|\s+|.", "\n".join(ANSWERS.values())),
        *('{"name": "now"', '"arguments": {', '"', "\\", "\\u12", "}", "<think>", "</think>"),
    }
)
WITH_REASONING = {
    **{(name, "none"): text for name, text in ANSWERS.items()},
    ("hermes", "think"): f"<think>\nFirst <tool_call>, {{ then.\n</think>\n\n{ANSWERS['hermes']}",
    ("kimi-k2", "think"): f"<think>I call.{ANSWERS['kimi-k2'].removeprefix('Let me see.')}",
    ("mistral-v11", "mistral"): f"[THINK]Hm.[/THINK]{ANSWERS['mistral-v11']}",
}
IDS = ["-".join(key) for key in WITH_REASONING]
each_answer = pytest.mark.parametrize(("names", "text"), WITH_REASONING.items(), ids=IDS)


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in pairwise(edges)]


def same_however_cut(names: tuple[str, str], text: str, places: list[int]) -> Parsed:
    whole = parsed(choose(*names), text)
    assert parsed(choose(*names), cut(text, places)) == whole
    assert parsed(choose(*names), list(text)) == whole
    return whole


places = st.lists(st.integers(0, 10_000), max_size=8)


@each_answer
@settings(max_examples=5, deadline=None)
@given(places=places)
def test_cuts_change_nothing(names: tuple[str, str], text: str, places: list[int]) -> None:
    same_however_cut(names, text, places)


@each_answer
@settings(max_examples=20, deadline=None)
@given(place=st.integers(0), length=st.integers(0, 40), put=st.sampled_from(_PIECES), places=places)
def test_damage_loses_no_words(
    names: tuple[str, str], text: str, place: int, length: int, put: str, places: list[int]
) -> None:
    """Words of the answer are in text, in reasoning or in a call, wherever the damage is."""
    assume(not any(word in put for word in _WORDS))  # tags and ids are no part of what is shown
    place %= len(text) + 1
    damaged = text[:place] + put + text[place + length :]
    found = same_however_cut(names, damaged, places)
    shown = " ".join(part for each in found for part in each[1:])
    for word in _WORDS:
        assert damaged.count(word) <= shown.count(word), (word, found)


@each_answer
@settings(max_examples=20, deadline=None)
@given(pieces=st.lists(st.sampled_from(_PIECES), max_size=30), places=places)
def test_any_pieces_of_formats(
    names: tuple[str, str], text: str, pieces: list[str], places: list[int]
) -> None:
    found = same_however_cut(names, "".join(pieces), places)
    if names[0] != "harmony" and all(each[0] == "text" for each in found):
        assert text_of(found) == "".join(pieces)


@each_answer
def test_every_beginning_of_an_answer(names: tuple[str, str], text: str) -> None:
    for end in range(len(text)):
        parsed(choose(*names), text[:end])


@pytest.mark.parametrize("name", ANSWERS)
def test_text_without_a_call_is_text_as_it_was(name: str) -> None:
    """Each marker alone, in the middle of text."""
    for marker in choose(name).tools.keeps_special:
        text = f"In code, `{marker}` stands \n for {marker} that.\n"
        if name != "harmony":
            assert parsed(name, list(text)) == [("text", text)]


@pytest.mark.parametrize("name", ANSWERS)
def test_text_is_passed_on_when_it_cannot_begin_a_marker(name: str) -> None:
    """Only white space and the beginning of a marker are held back."""
    parser = choose(name).parser()
    shown = [joined(parser.feed(piece)) for piece in ("Hello", ", x ", "< y")]
    assert shown == [[("text", "Hello")], [("text", ", x")], [("text", " < y")]] or (
        name == "harmony" and shown[1:] == [[("text", ", x ")], [("text", "< y")]]
    )


def test_reasoning_forms_are_tested() -> None:
    assert {THINK.name, MISTRAL.name} == {names[1] for names in WITH_REASONING} - {"none"}
    assert events_of(choose("plain"), []) == []
