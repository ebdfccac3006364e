"""Are kept prefixes right where layers see only a window, and keep only that?"""

from __future__ import annotations

from typing import Any

from small_llms import greedy, llm, prompts

import stock

NAME = "gpt-oss"
TEXT, OTHER = prompts((90, 20))


def said(several: list[list[list[int]]], **options: Any) -> list[tuple[tuple[int, ...], int]]:
    """Texts and cached tokens of batches, one after another."""
    with llm(
        stock.saved(NAME).folder, dtype="fp32", max_model_len=128, kv_tokens=512, **options
    ) as model:
        made = [one for batch in several for one in model.generate(batch, greedy(8))]
        window = model.model.spec.sliding_window
    assert 0 < window < 32, "so narrow that a text leaves it"
    return [(one.tokens, one.cached_tokens) for one in made]


def test_a_text_is_gone_on_with_but_not_gone_back_in() -> None:
    batches = [[TEXT], [[*TEXT, 1, 2]], [[*TEXT[:30], 3]], [[*TEXT, 1, 2, 4]], [TEXT]]
    kept = said(batches, max_sequences=1)
    whole = said(batches, max_sequences=1, prefix_cache=False)
    assert [text for text, _ in kept] == [text for text, _ in whole]
    assert [cached for _, cached in kept] == [0, 89, 0, 91, 89]


def test_requests_that_begin_alike_share_while_it_is_in_the_window() -> None:
    batch = [[*TEXT[:40], end, *OTHER] for end in (1, 2, 3)]
    kept = said([batch])
    whole = said([batch], prefix_cache=False)
    assert [text for text, _ in kept] == [text for text, _ in whole]
    assert [cached for _, cached in kept] == [0, 40, 40]
