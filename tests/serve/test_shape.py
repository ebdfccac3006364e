"""Do templates of several families write all of what agents send, in its order?"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from family_templates import FAMILIES

import small_tokenizers
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.serve.conversation import conversation_tokens
from moesaic.serve.schemas import ChatRequest, decode
from moesaic.serve.template_rules import TemplateRules, rules_of

LOOK = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": LOOK}]


def called(number: int) -> dict[str, Any]:
    function = {"name": "look", "arguments": json.dumps({"place": f"place-{number}"})}
    return {"id": f"call_{number:024}", "type": "function", "function": function}


def result(number: int) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number:024}", "content": f"result-{number}"}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def tokenizer(family: str, tmp_path: Path) -> Tokenizer:
    return made(FAMILIES[family].template, tmp_path)


def made(template: str, folder: Path) -> Tokenizer:
    path = small_tokenizers.save(folder / "model", "byte-level", chat_template=template)
    return Tokenizer.open(path)


def prompt(tokenizer: Tokenizer, messages: list[dict[str, Any]], **fields: Any) -> str:
    body = {"messages": messages, "tools": TOOLS} | fields
    tokens = conversation_tokens(decode(json.dumps(body).encode(), ChatRequest), tokenizer)
    return tokenizer.decode(tokens, skip_special=False)


def check_order(text: str, *words: str) -> None:
    place = 0
    for word in words:
        found = text.find(word, place)
        assert found >= 0, f"{word} does not follow {text[:place][-100:]!r} in {text!r}"
        assert text.count(word) == 1, word
        place = found


def test_several_instructions_in_front(tokenizer: Tokenizer) -> None:
    """Codex begins with two messages of the role developer, and two of a user."""
    text = prompt(
        tokenizer,
        [
            {"role": "developer", "content": "first-rule"},
            {"role": "developer", "content": "second-rule"},
            {"role": "user", "content": "where-am-i"},
            {"role": "user", "content": "question"},
        ],
    )
    check_order(text, "first-rule", "second-rule", "where-am-i", "question")


@pytest.mark.parametrize("with_tools", [True, False])
def test_a_system_message_inside(tokenizer: Tokenizer, with_tools: bool) -> None:
    """Claude Code has one behind the user's question, and more later."""
    said = [
        {"role": "system", "content": "first-rule"},
        {"role": "user", "content": "question"},
        {"role": "system", "content": "later-rule"},
    ]
    more = [
        {"role": "assistant", "content": "answer"},
        {"role": "user", "content": "again"},
        {"role": "system", "content": "last-rule"},
    ]
    options: dict[str, Any] = {} if with_tools else {"tools": []}
    begun = prompt(tokenizer, said, **options)
    whole = prompt(tokenizer, [*said, *more], **options)
    check_order(whole, "first-rule", "question", "later-rule", "answer", "again", "last-rule")
    assert whole.startswith(begun.partition("later-rule")[0] + "later-rule")


def test_calls_side_by_side_with_text_and_thoughts(tokenizer: Tokenizer, family: str) -> None:
    text = prompt(
        tokenizer,
        [
            {"role": "user", "content": "question"},
            {
                "role": "assistant",
                "reasoning_content": "thought",
                "content": "text",
                "tool_calls": [called(1), called(2)],
            },
            result(1),
            result(2),
            {"role": "user", "content": "reminder"},
        ],
    )
    results = ("place-1", "result-1", "place-2", "result-2")
    if rules_of(tokenizer).several_calls:
        results = ("place-1", "place-2", "result-1", "result-2")
    check_order(text, "question", "text", *results, "reminder")
    assert ("thought" in text) == (family in ("qwen3.5", "harmony"))  # not the user's last question


def test_an_answer_that_only_calls(tokenizer: Tokenizer) -> None:
    for content in (None, ""):
        calling = {"role": "assistant", "content": content, "tool_calls": [called(1)]}
        asked: list[dict[str, Any]] = [{"role": "user", "content": "question"}, calling, result(1)]
        check_order(prompt(tokenizer, asked), "question", "place-1", "result-1")


def test_an_answer_that_was_cut_while_it_thought(tokenizer: Tokenizer) -> None:
    cut = {"role": "assistant", "content": None, "reasoning": "thought"}
    again = {"role": "user", "content": "go-on"}
    asked: list[dict[str, Any]] = [{"role": "user", "content": "question"}, cut, again]
    check_order(prompt(tokenizer, asked), "question", "go-on")


def test_what_a_result_shows_beside_text_is_named(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "result-1"}, {"type": "image_url", "image_url": {"url": "-"}}]
    calling = {"role": "assistant", "content": None, "tool_calls": [called(1)]}
    asked: list[dict[str, Any]] = [
        {"role": "user", "content": "question"},
        calling,
        result(1) | {"content": parts},
    ]
    check_order(prompt(tokenizer, asked), "place-1", "result-1", "image_url was left out")


def test_an_effort_reaches_a_template_that_has_one(tokenizer: Tokenizer, family: str) -> None:
    asked: list[dict[str, Any]] = [{"role": "user", "content": "question"}]
    high, most = (prompt(tokenizer, asked, reasoning_effort=each) for each in ("high", "xhigh"))
    assert high == most
    assert ("Reasoning: high" in high) == (family == "harmony")


def test_a_template_is_asked_what_it_writes(tmp_path: Path) -> None:
    @cache
    def rules(family: str) -> TemplateRules:
        return rules_of(made(FAMILIES[family].template, tmp_path / family))

    for family in FAMILIES:
        (tmp_path / family).mkdir()
    assert rules("qwen3") == TemplateRules(developer=False)
    assert not rules("qwen3.5").later_systems
    assert (rules("harmony").reasoning, rules("harmony").several_calls) == ("thinking", False)
    assert (rules("deepseek").no_text, rules("deepseek").arguments_as_text) == (None, True)
    assert (rules("mistral").short_ids, rules("mistral").user_after_tool) == (True, False)
