"""Is reasoning told from the answer, wherever it begins?"""

from __future__ import annotations

import pytest
from format_answers import parsed

from moesaic.core.errors import UnknownName
from moesaic.serve.events import ReasoningDelta
from moesaic.serve.formats.detect import choose, detect

CALL = '<tool_call>\n{"name": "now"}\n</tool_call>'


@pytest.mark.parametrize("is_open", [False, True])
def test_reasoning_before_a_call(is_open: bool) -> None:
    choice = choose("hermes", "think", reasoning_open=is_open)
    begin = "\n" if is_open else "<think>\n"
    found = parsed(choice, list(f"{begin}Why {CALL}?\n</think>\n\nBecause.\n{CALL}"))
    assert [each[:2] for each in found] == [
        ("reasoning", f"Why {CALL}?"),
        ("text", "Because."),
        ("call", "now"),
    ]


def test_an_open_reasoning_that_the_model_opens_again() -> None:
    assert parsed(choose("plain", "think", True), "<think>a</think>b") == [
        ("reasoning", "a"),
        ("text", "b"),
    ]


def test_reasoning_that_does_not_end() -> None:
    parser = choose("hermes", "think").parser()
    assert parser.feed("<think>I th") == [ReasoningDelta("I th")]
    assert parser.feed("ink </thi") == [ReasoningDelta("ink")]
    assert parser.finish() == [ReasoningDelta(" </thi")]


@pytest.mark.parametrize("text", ["No <think>tags</think> here.", " Answer.", "<thin", ""])
def test_tags_later_in_an_answer_are_text(text: str) -> None:
    assert parsed(choose("plain", "think"), list(text)) == ([("text", text)] if text else [])


def test_a_special_token_that_begins_calls_ends_reasoning() -> None:
    call = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
    section = f"<|tool_calls_section_begin|>{call}<|tool_calls_section_end|>"
    found = parsed(choose("kimi-k2", "think", True), list(f"I look. {section}"))
    assert found == [("reasoning", "I look."), ("call", "now", "functions.now:0", "{}")]


TEMPLATES = {
    "qwen3": ("'<tool_call>\\n{\"name\": ' arguments '<think>' {%- if add_generation_prompt %}"
              "{{- '<|im_start|>assistant\\n' }}{%- if enable_thinking is false %}"
              "{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}"),
    "qwen3.5": ("<tool_call> <function= <parameter= </think> {%- if add_generation_prompt %}"
                "{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"),
    "gpt-oss": "<|channel|> <|message|> <tool_call>",
    "glm": "<tool_call> <arg_key> <arg_value> <think></think>",
    "kimi": "<|tool_calls_section_begin|>",
    "plain": "{{ message.content }}",
}  # fmt: skip


@pytest.mark.parametrize(
    ("template", "model_type", "expected"),
    [
        (TEMPLATES["qwen3"], "qwen3_moe", ("hermes", "think", False)),
        (TEMPLATES["qwen3.5"], "qwen3_moe", ("qwen3-coder", "think", True)),
        (TEMPLATES["gpt-oss"], None, ("harmony", "none", False)),
        (TEMPLATES["glm"], "glm4_moe", ("glm", "think", False)),
        (TEMPLATES["kimi"], "deepseek_v3", ("kimi-k2", "none", False)),
        (TEMPLATES["plain"], "qwen3_moe", ("plain", "none", False)),
        (None, "gpt_oss", ("harmony", "none", False)),
        (None, "deepseek_v3", ("deepseek-v3", "think", False)),
        (None, "olmoe", ("plain", "none", False)),
        (None, None, ("plain", "none", False)),
    ],
)
def test_formats_are_found_in_the_template(
    template: str | None, model_type: str | None, expected: tuple[str, str, bool]
) -> None:
    choice = detect(template, model_type)
    assert (choice.tools.name, choice.reasoning.name, choice.reasoning_open) == expected


def test_names_override_what_is_found() -> None:
    choice = detect(TEMPLATES["qwen3"], None, tools="glm", reasoning="none")
    assert (choice.tools.name, choice.reasoning.name) == ("glm", "none")
    assert "<arg_key>" in choice.keeps_special
    with pytest.raises(UnknownName, match=r"tool format 'hermess'.*'hermes'.*qwen3-coder"):
        detect(None, None, tools="hermess")
    with pytest.raises(UnknownName, match=r"reasoning form 'x'.*think"):
        detect(None, None, reasoning="x")


def test_a_rendered_prompt_says_whether_reasoning_is_open() -> None:
    choice = detect(TEMPLATES["qwen3.5"], None)
    assert choice.for_prompt("<|im_start|>assistant\n<think>\n").reasoning_open
    assert not choice.for_prompt("<|im_start|>assistant\n<think>\n\n</think>\n\n").reasoning_open
    assert not choose("hermes").for_prompt("<think>").reasoning_open
