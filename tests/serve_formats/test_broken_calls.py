"""What becomes of calls that are malformed, unfinished or written in another way?"""

from __future__ import annotations

import json

import pytest
from format_answers import calls_of, parsed, text_of

from moesaic.serve.events import TextDelta, ToolArguments, ToolCallBegin, ToolCallEnd
from moesaic.serve.formats.detect import choose


def hermes(body: str) -> str:
    return f"<tool_call>\n{body}\n</tool_call>"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", "<tool_call>not JSON</tool_call>"),
        ("hermes", 'a\n<tool_call>{"arguments": {"a": 1}}</tool_call>\n'),
        ("hermes", '<tool_call>{"name": "f", "arguments": [1]}</tool_call>'),
        ("hermes", '<tool_call>{"name": "f", "thought": "hm"}</tool_call>'),
        ("hermes", '<tool_call>{"name": "wea'),
        ("hermes", "```\n<tool_call>\n{...}\n</tool_call>\n```"),
        ("qwen3-coder", "<tool_call>\n<function=a b></function>"),
        ("qwen3-coder", "Use <function=NAME> to call."),
        ("glm", "<tool_call>a name of several words</tool_call>"),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜>nothing"),
        ("kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>f:0 x"),
        ("minimax-m2", '<minimax:tool_call>\n<invoke name="f"> and text'),
        ("mistral", "[TOOL_CALLS] [1, 2]"),
        ("mistral-v11", "[TOOL_CALLS]f[ARGS]nothing"),
        ("llama3", '{"name": "Bob", "age": 3}'),
        ("llama3", '{"result": {"name": "f"}}'),
        ("llama3", "<|python_tag|>print(1)"),
        ("harmony", "plain text"),
        ("harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|mess"),
        ("harmony", "<|start|>nothing here\n<|message|>x"),
    ],
)
def test_what_never_became_a_call_is_text_as_it_was(name: str, text: str) -> None:
    assert parsed(name, list(text)) == [("text", text)]


def test_a_call_after_a_broken_one_is_found() -> None:
    broken, good = "<tool_call>{]", hermes('{"name": "now", "arguments": {}}')
    found = parsed("hermes", f"{broken}\n{good}")
    assert found == [("text", broken), ("call", "now", "", "{}")]


@pytest.mark.parametrize(
    ("name", "begin", "broken"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": {"a": ', "oops}</tool_call>"),
        ("mistral-v11", '[TOOL_CALLS]f[ARGS]{"a": ', "oops}"),
        ("qwen3-coder", "<function=f>\n<parameter=a>\n1\n</parameter>\n", "oops</function>"),
    ],
)
def test_a_call_that_breaks_later_is_closed(name: str, begin: str, broken: str) -> None:
    """Its arguments are no valid JSON, so no client takes them for complete; the rest is text."""
    found = parsed(name, list(begin + broken))
    assert [each[0] for each in found] == ["call", "text"]
    assert text_of(found).strip() == broken
    with pytest.raises(ValueError, match=r"Expecting|delimiter"):
        json.loads(found[0][3])


def test_an_unfinished_call_is_closed_at_the_end() -> None:
    parser = choose("hermes").parser()
    begun = parser.feed('<tool_call>{"name": "f", "arguments": {"a": "Par')
    assert begun == [ToolCallBegin(0, "f"), ToolArguments(0, '{"a": "Par')]
    assert parser.finish() == [ToolCallEnd(0)]


def test_an_incomplete_value_between_tags_is_text() -> None:
    """A value whose type is not known before its end was not passed on."""
    text = "<function=weather>\n<parameter=days>\n3"
    assert parsed("qwen3-coder", list(text)) == [
        ("call", "weather", "", ""),
        ("text", "<parameter=days>\n3"),
    ]


def test_arguments_are_passed_on_as_they_come() -> None:
    parser = choose("hermes").parser()
    assert parser.feed('x <tool_call>{"name": "f", "arguments": ') == [TextDelta("x")]
    assert parser.feed('{"a": "b') == [ToolCallBegin(0, "f"), ToolArguments(0, '{"a": "b')]
    assert parser.feed("c\\") == [ToolArguments(0, "c")]
    assert parser.feed('n", "d": 12') == [ToolArguments(0, '\\n", "d": ')]
    assert parser.feed("3}}") == [ToolArguments(0, "123}"), ToolCallEnd(0)]


def test_long_strings_between_tags_are_passed_on_as_they_come() -> None:
    tools = [{"name": "f", "parameters": {"properties": {"a": {"type": "string"}}}}]
    parser = choose("glm").parser(tools)
    begun = parser.feed("<tool_call>f<arg_key>a</arg_key><arg_value>one\ntwo</arg")
    assert begun == [ToolCallBegin(0, "f"), ToolArguments(0, '{"a": "one\\ntwo')]


@pytest.mark.parametrize(
    ("body", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "f"}', {"a": 1}),
        ('{"name": "f"}', {}),
        ('{"name": "f", "arguments": null}', {}),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', {"a": 1}),
        ('{"name": "f", "parameters": {"a": "\\ud83d\\ude00 \\u00e9"}}', {"a": "😀 é"}),
        ('{"id": "x", "thought": "hm", "name": "f", "arguments": {"a": {"b": [{}]}}}',
         {"a": {"b": [{}]}}),
        ('{"name": "f", "arguments": {"a": "</tool_call> } \\" {"}}', {"a": '</tool_call> } " {'}),
        ('{"name": "f", "arguments": {"a": "two\nlines \\d+"}}', {"a": "two\nlines \\d+"}),
        ('{"name": "f", "arguments": {"a": 1}', {"a": 1}),
        ('{"name": "f", "arguments": { }, "why": [1]}', {}),
    ],
)  # fmt: skip
def test_other_ways_to_write_a_call(body: str, arguments: dict[str, object]) -> None:
    found = parsed("hermes", list(hermes(body)))
    assert calls_of(found) == [("f", arguments)]
    assert len(found) == 1


def test_text_between_calls_keeps_its_white_space() -> None:
    call = hermes('{"name": "now"}')
    found = parsed("hermes", f" a \n{call}\n b.\n\n{call}\n\n{call} \n")
    assert [each[1] for each in found] == [" a", "now", "\n b.", "now", "now"]


def test_ids_that_a_model_writes() -> None:
    section = "<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b:12"
    found = parsed("kimi-k2", section + "<|tool_call_argument_begin|>{}<|tool_call_end|>")
    assert found == [("call", "a.b", "functions.a.b:12", "{}")]
    found = parsed("mistral-v11", "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{}")
    assert found == [("call", "f", "abcdefghi", "{}")]


@pytest.mark.parametrize(
    ("value", "argument", "json_value"),
    [
        ("12", "days", 12), ("soon", "days", "soon"), ("1.5", "days", "1.5"), ("12", "city", "12"),
        ("True", "wind", True), ("false", "wind", False), ("None", "mode", None),
        ("[1, 2]", "unknown", [1, 2]), ("NaN", "unknown", "NaN"), ("{'a'}", "unknown", "{'a'}"),
        ("5", "either", 5), ("null", "either", "null"), ("7", "named", 7), ("", "city", ""),
    ],
)  # fmt: skip
def test_values_have_the_types_of_the_schema(value: str, argument: str, json_value: object) -> None:
    properties = {
        "days": {"type": "integer"},
        "city": {"type": "string"},
        "wind": {"type": "boolean"},
        "mode": {"type": ["integer", "null"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "number"}]},
        "named": {"$ref": "#/$defs/count"},
    }
    schema = {"properties": properties, "$defs": {"count": {"type": "integer"}}}
    parser = choose("glm").parser([{"function": {"name": "f", "parameters": schema}}])
    text = f"<tool_call>f<arg_key>{argument}</arg_key><arg_value>{value}</arg_value></tool_call>"
    arguments = [e.text for e in parser.feed(text) if isinstance(e, ToolArguments)]
    assert json.loads("".join(arguments)) == {argument: json_value}


def test_the_two_orders_of_a_harmony_head() -> None:
    call = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.now<|channel|>"
    found = parsed("harmony", call + "commentary json<|message|>{}<|call|>")
    assert found == [("reasoning", "Hm."), ("call", "now", "", "{}")]
    preamble = "<|channel|>commentary<|message|>I look.<|end|>"
    final = "<|start|>assistant<|channel|>final<|message|>Done.<|return|>"
    assert parsed("harmony", preamble + final) == [("text", "I look.Done.")]
