"""Is text cut at the first stop string, however it arrives, and nothing held back in vain?"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.engine.output_text import OutputText, Shown, StopChecker
from moesaic.models.text.tokenizer import Tokenizer
from small_tokenizers import save

# Few letters, so that stop strings occur, overlap and begin inside each other.
TEXTS = st.text("ab\n", max_size=40)
STOPS = st.lists(st.text("ab\n", min_size=1, max_size=6), max_size=9)


def cut(text: str, stops: list[str]) -> str:
    return text[: min([text.find(stop) for stop in stops if stop in text], default=len(text))]


@given(TEXTS, STOPS, st.data())
def test_any_split_shows_the_text_up_to_the_first_stop_string(
    text: str, stops: list[str], data: st.DataObject
) -> None:
    ends = data.draw(st.lists(st.integers(0, len(text)), max_size=12))
    pieces = [text[a:b] for a, b in pairwise([0, *sorted(ends), len(text)])]
    checker, shown, fed = StopChecker(stops), "", ""
    for piece in pieces:
        step = checker.feed(piece)
        shown, fed = shown + step.text, fed + piece
        if step.stopped:
            break
        held = fed[len(shown) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
    last = checker.finish()
    assert shown + last.text == cut(text, stops)
    assert last.stopped == any(stop in text for stop in stops)


@given(TEXTS, STOPS)
def test_one_letter_at_a_time(text: str, stops: list[str]) -> None:
    checker, shown = StopChecker(stops), ""
    for letter in text:
        step = checker.feed(letter)
        shown += step.text
        assert cut(text, stops).startswith(shown), "shown text is never taken back"
        if step.stopped:
            break
    assert shown + checker.finish().text == cut(text, stops)


@pytest.mark.parametrize("piece", ["", "a", "\n\nHuman:"])
def test_without_stop_strings_everything_is_shown_at_once(piece: str) -> None:
    checker = StopChecker(())
    assert checker.feed(piece) == Shown(piece, False)
    assert checker.finish() == Shown("", False)


def test_a_beginning_is_held_until_it_is_decided() -> None:
    checker = StopChecker(("\nUser:",))
    assert checker.feed("Hello\nUs") == Shown("Hello", False)
    assert checker.feed("ual\nUser") == Shown("\nUsual", False)
    assert checker.feed(": hi") == Shown("", True)
    assert checker.finish() == Shown("", True)


def test_a_stop_string_in_a_beginning_waits_for_the_earlier_one() -> None:
    checker = StopChecker(("abc", "b"))
    assert checker.feed("xab") == Shown("x", False)
    assert checker.feed("c") == Shown("", True)
    checker = StopChecker(("abc", "b"))
    checker.feed("xab")
    assert checker.finish() == Shown("a", True)
    checker = StopChecker(("abc", "b"))
    checker.feed("xab")
    assert checker.feed("!") == Shown("a", True)


def test_a_repeated_beginning_is_not_lost() -> None:
    checker = StopChecker(("aab",))
    assert checker.feed("aa") == Shown("", False)
    assert checker.feed("a") == Shown("a", False)
    assert checker.feed("b") == Shown("", True)


def test_many_stop_strings_cost_little_per_token() -> None:
    """All answers are read by one thread: a millisecond for a token would slow all of them."""
    checker = StopChecker(f"{first}{number:0>60}" for first in "abcdefgh" for number in range(32))
    began = process_time()
    for _ in range(1000):
        assert checker.feed(" a cab had a bad bed.") == Shown(" a cab had a bad bed.", False)
    assert process_time() - began < 0.5


def test_special_tokens_that_are_kept(tmp_path: Path) -> None:
    """They may be stop strings, too; texts that the model has no token for say nothing."""
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level"))
    ids = [3, *tokenizer.encode("rest", special=False), 4]
    for keep, stop, text in (
        ((), (), "rest"),
        (("<|im_start|>", "<|call|>"), (), "<|im_start|>rest"),
        (("<|im_end|>", "<|im_start|>"), ("<|im_end|>",), "<|im_start|>rest"),
    ):
        output = OutputText(tokenizer, stop, keep)
        assert [output.feed(token).stopped for token in ids][-1] == bool(stop)
        if not stop:
            output.finish()
        assert output.text == text
