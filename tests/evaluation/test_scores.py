"""Do results add up to the right shares, intervals and perplexities?"""

from __future__ import annotations

import math

import pytest

from moesaic.lab.evaluation.results import ItemResult, from_line
from moesaic.lab.evaluation.scores import Score, TextScore, scores, wilson


@pytest.mark.parametrize(
    ("right", "asked", "low", "high"),
    [  # worked out by hand from Wilson's formula, z = 1.96
        (0, 10, 0.0, 0.2775),
        (5, 10, 0.2366, 0.7634),
        (10, 10, 0.7225, 1.0),
        (1, 1, 0.2065, 1.0),
        (81, 100, 0.7222, 0.8749),
    ],
)
def test_intervals(right: int, asked: int, low: float, high: float) -> None:
    assert wilson(right, asked) == pytest.approx((low, high), abs=2e-4)


def answer(item: str, group: str, kind: str, right: bool | None) -> ItemResult:
    return ItemResult("problems", item, group, kind, right, tokens=10, seconds=0.5)


def test_groups_kinds_and_what_was_left_out() -> None:
    found = scores(
        [
            answer("1", "a", "word", True),
            answer("2", "a", "list", False),
            answer("3", "a", "word", False),
            ItemResult("problems", "4", "a", why="its field is missing"),
            answer("5", "b", "word", True),
        ]
    )
    assert all(isinstance(score, Score) for score in found)
    rows = [(s.group, s.kind, s.right, s.asked, s.left_out) for s in found if isinstance(s, Score)]
    assert rows == [
        ("a", "", 1, 3, 1),
        ("a", "list", 0, 1, 0),
        ("a", "word", 1, 2, 0),
        ("b", "", 1, 1, 0),
    ]
    first, _, third, _ = found
    assert first.tokens_per_s == pytest.approx(30 / 1.5)
    assert third.tokens_per_s is None


def test_nothing_asked_has_no_share() -> None:
    (score,) = scores([ItemResult("gsm8k", "line 1", why="no")])
    assert isinstance(score, Score)
    assert (score.share, score.low, score.asked, score.left_out) == (None, None, 0, 1)


def test_perplexity_is_of_all_windows_together() -> None:
    parts = [(3, 6.0, 12.0, 2.0), (1, 4.0, 4.0, 1.0)]
    results = [
        ItemResult("perplexity", str(n), tokens=t, seconds=1.0, loss=loss, bytes=size, words=words)
        for n, (t, loss, size, words) in enumerate(parts)
    ]
    (reading,) = scores(results)
    assert isinstance(reading, TextScore)
    assert reading.token_perplexity == pytest.approx(math.exp(10 / 4))
    assert reading.byte_perplexity == pytest.approx(math.exp(10 / 16))
    assert reading.word_perplexity == pytest.approx(math.exp(10 / 3))
    assert reading.bits_per_byte == pytest.approx(10 / 16 / math.log(2))
    assert reading.tokens_per_s == 2.0


def test_a_line_gives_the_result_back() -> None:
    result = ItemResult(
        "gsm8k", "line 3", right=False, answer="é\n\u2028 72", expected="72", tokens=3
    )
    assert "\n" not in result.line()
    assert from_line(result.line()) == result
    for broken in ("[]", "{}", '{"task": "a", "item": "b", "colour": 1}', "3", "{"):
        with pytest.raises(ValueError):  # noqa: PT011 (whatever it says)
            from_line(broken)
