"""Are kept prefixes right where layers keep a state, which only a few tokens can be taken off?"""

from __future__ import annotations

from typing import Any

from small_llms import greedy, llm, prompts

import stock

NAME = "qwen3-next"
TEXT, OTHER = prompts((70, 20))


def said(several: list[list[list[int]]], **options: Any) -> list[tuple[tuple[int, ...], int]]:
    """Texts and cached tokens of batches, one after another."""
    with llm(
        stock.saved(NAME).folder, dtype="fp32", max_model_len=128, kv_tokens=512, **options
    ) as model:
        made = [one for batch in several for one in model.generate(batch, greedy(8))]
    return [(one.tokens, one.cached_tokens) for one in made]


def test_a_text_is_gone_on_with_but_not_gone_back_in() -> None:
    batches = [[TEXT], [[*TEXT, 1, 2]], [[*TEXT[:20], 3]], [[*TEXT, 1, 2, 4]], [TEXT]]
    kept = said(batches, max_sequences=1)
    whole = said(batches, max_sequences=1, prefix_cache=False)
    assert [text for text, _ in kept] == [text for text, _ in whole]
    assert [cached for _, cached in kept] == [0, 69, 0, 71, 69]


def test_a_conversation_reads_only_what_is_new() -> None:
    answer = list(said([[TEXT]])[0][0])
    batches = [[TEXT], [[*TEXT, *answer, *OTHER]]]
    kept = said(batches, max_sequences=1)
    assert kept[1][1] == len(TEXT) + len(answer) - 1, "all but the last token, which was not fed"
    whole = said(batches, max_sequences=1, prefix_cache=False)
    assert [text for text, _ in kept] == [text for text, _ in whole]


def test_completions_of_one_prompt_share_it() -> None:
    batch = [[*TEXT[:40], *OTHER]] * 3
    kept = said([batch])
    whole = said([batch], prefix_cache=False)
    assert [text for text, _ in kept] == [text for text, _ in whole]
    assert [cached for _, cached in kept] == [0, 59, 59]
