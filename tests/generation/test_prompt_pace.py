"""Do requests that decode wait no longer than they are to for the prompts of others?"""

from __future__ import annotations

from typing import Any

import pytest
from small_llms import greedy, llm, prompts

import stock
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.units import NS_PER_MS
from moesaic.engine import prompt_pace
from moesaic.engine.prompt_pace import LEAST, PromptPace


def settled(pace: PromptPace, fixed_ms: float, token_ms: float) -> int:
    """How many tokens join after some steps that take so long."""
    for _ in range(40):
        read = pace.tokens
        pace.add(read, round((fixed_ms + read * token_ms) * NS_PER_MS))
    return pace.tokens


@pytest.mark.parametrize(
    ("fixed_ms", "token_ms", "expected"),
    [(0, 1, 250), (50, 0.5, 400), (10, 0.01, 2048), (10, 20, LEAST), (400, 0.1, LEAST)],
)
def test_as_many_tokens_join_as_take_so_long(
    fixed_ms: float, token_ms: float, expected: int
) -> None:
    pace = PromptPace(250, most_tokens=2048)
    assert settled(pace, fixed_ms, token_ms) == pytest.approx(expected, rel=0.02)


def test_a_short_rest_of_a_prompt_says_nothing_of_longer_ones() -> None:
    pace = PromptPace(250, most_tokens=2048)
    before = pace.tokens
    pace.add(3, 10 * NS_PER_MS)
    assert pace.tokens == before


def test_without_a_limit_steps_are_full() -> None:
    pace = PromptPace(None, most_tokens=512)
    pace.add(512, 10**12)
    assert pace.tokens == 512


@pytest.mark.parametrize("limit", [0.001, None])
def test_prompts_are_cut_where_others_decode(
    limit: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second prompt begins when the first request decodes; every step takes longer than the
    limit."""
    monkeypatch.setattr(prompt_pace, "_FIRST", 128)
    first, second = prompts((10, 210))
    options: dict[str, Any] = {"dtype": "fp32", "max_model_len": 256, "max_step_tokens": 240}
    with llm(stock.saved("mixtral").folder, max_stall_ms=limit, **options) as model:
        batcher, processor = model.model.batcher, model.model.input_processor
        one, other = (processor.request(each, greedy(30)) for each in (first, second))
        batcher.submit(one)
        batcher.step()
        batcher.submit(other)
        read: list[int] = []
        while not batcher.idle:
            before = other.computed_tokens
            batcher.step()
            if other.computed_tokens - before > 1:
                read.append(other.computed_tokens - before)
        alone = [model.generate([each], greedy(30))[0].tokens for each in (first, second)]
    assert read == ([210] if limit is None else [128, 64, 18])
    assert [each.completion().tokens for each in (one, other)] == alone


@pytest.mark.parametrize("limit", [0, -1, "fast"])
def test_a_limit_that_is_none_is_refused(limit: object) -> None:
    with pytest.raises(ImpossibleSetting, match="max_stall_ms is"):
        llm(stock.saved("mixtral").folder, max_stall_ms=limit)
