"""Does every format's parser find the calls that its template writes?"""

from __future__ import annotations

import pytest
from format_answers import ANSWERS, EXPECTED, calls_of, parsed, text_of

from moesaic.serve.formats.registry import TOOL_FORMATS


def test_every_format_has_an_answer_here() -> None:
    assert {*ANSWERS, "plain"} == set(TOOL_FORMATS)


@pytest.mark.parametrize("name", ANSWERS)
def test_calls_of_a_published_template(name: str) -> None:
    found = parsed(name, ANSWERS[name])
    assert calls_of(found) == EXPECTED
    assert text_of(found) == "Let me see."


@pytest.mark.parametrize("name", ANSWERS)
def test_one_character_at_a_time(name: str) -> None:
    assert parsed(name, list(ANSWERS[name])) == parsed(name, ANSWERS[name])


@pytest.mark.parametrize("name", ANSWERS)
def test_text_alone(name: str) -> None:
    text = " Nothing < to [call] here: {}.\n<tool\n"
    assert parsed(name, list(text)) == [("text", text)]
