"""Answers in every format, and what a parser makes of one, in a form that tests compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from moesaic.serve.events import (
    Event,
    ReasoningDelta,
    TextDelta,
    ToolArguments,
    ToolCallBegin,
    ToolCallEnd,
)
from moesaic.serve.formats.detect import FormatChoice, choose

Parsed = list[tuple[str, ...]]

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "units": {"type": "string", "enum": ["metric", "imperial"]},
                    "details": {
                        "type": "object",
                        "properties": {"wind": {"type": "boolean"}},
                    },
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "write_file",
            "parameters": {
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "content": {"type": "string"},
                    "mode": {"type": ["integer", "null"]},
                },
                "required": ["path", "content"],
            },
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": {}}},
]


def events_of(choice: FormatChoice, pieces: Iterable[str]) -> list[Event]:
    parser = choice.parser(TOOLS)
    found = [event for piece in pieces for event in parser.feed(piece)]
    return [*found, *parser.finish()]


def parsed(choice: FormatChoice | str, text: str | Sequence[str]) -> Parsed:
    """Fragments joined: ("text", ...), ("reasoning", ...), ("call", name, id, arguments)."""
    choice = choose(choice) if isinstance(choice, str) else choice
    return joined(events_of(choice, [text] if isinstance(text, str) else text))


def joined(events: Iterable[Event]) -> Parsed:
    """Calls begin in order, have one end, and nothing comes between."""
    found: Parsed = []
    open_call: int | None = None
    count = 0
    for event in events:
        match event:
            case TextDelta(text) | ReasoningDelta(text):
                assert open_call is None
                assert text
                kind = "text" if isinstance(event, TextDelta) else "reasoning"
                if found and found[-1][0] == kind:
                    found[-1] = (kind, found[-1][1] + text)
                else:
                    found.append((kind, text))
            case ToolCallBegin(index, name, id):
                assert open_call is None
                assert index == count
                open_call, count = index, count + 1
                found.append(("call", name, id or "", ""))
            case ToolArguments(index, text):
                assert index == open_call
                _, name, id, before = found[-1]
                found[-1] = ("call", name, id, before + text)
            case ToolCallEnd(index):
                assert index == open_call
                open_call = None
    assert open_call is None
    return found


def calls_of(found: Parsed) -> list[tuple[str, Any]]:
    """Names and arguments, which must be JSON objects."""
    calls = [(each[1], json.loads(each[3])) for each in found if each[0] == "call"]
    assert all(isinstance(arguments, dict) for _, arguments in calls)
    return calls


def text_of(found: Parsed) -> str:
    return "".join(each[1] for each in found if each[0] == "text")


PARIS = {"city": "Paris", "days": 3}
CODE = 'if a < b: print("{\\n}")\n</tool_calls> [TOOL_CALL] ≈ 😀'
FILE = {"path": "a.py", "content": CODE}

# Every format: text, a call with two arguments, a call with none, one with difficult text.
_CALLS: list[tuple[str, dict[str, Any]]] = [("weather", PARIS), ("now", {}), ("write_file", FILE)]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _tagged(arguments: dict[str, Any], pattern: str) -> str:
    """A text per argument: `{0}` is its name, `{1}` its value, `{2}` whether it is a string."""
    return "".join(
        pattern.format(
            name,
            value if isinstance(value, str) else _json(value),
            str(isinstance(value, str)).lower(),
        )
        for name, value in arguments.items()
    )


def _answers() -> dict[str, str]:
    hermes = "\n".join(
        f'<tool_call>\n{{"name": "{name}", "arguments": {_json(a)}}}\n</tool_call>'
        for name, a in _CALLS
    )
    coder = "\n".join(
        f"<tool_call>\n<function={name}>\n"
        + _tagged(a, "<parameter={0}>\n{1}\n</parameter>\n")
        + "</function>\n</tool_call>"
        for name, a in _CALLS
    )
    glm = "\n".join(
        f"<tool_call>{name}\n"
        + _tagged(a, "<arg_key>{0}</arg_key>\n<arg_value>{1}</arg_value>\n")
        + "</tool_call>"
        for name, a in _CALLS
    )
    v3 = "\n".join(
        f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{_json(a)}\n```"
        "<｜tool▁call▁end｜>"
        for name, a in _CALLS
    )
    v31 = "".join(
        f"<｜tool▁call▁begin｜>{name}<｜tool▁sep｜>{_json(a)}<｜tool▁call▁end｜>"
        for name, a in _CALLS
    )
    kimi = "".join(
        f"<|tool_call_begin|>functions.{name}:{n}<|tool_call_argument_begin|>{_json(a)}"
        "<|tool_call_end|>"
        for n, (name, a) in enumerate(_CALLS)
    )
    minimax = "".join(
        f'<invoke name="{name}">\n'
        + _tagged(a, '<parameter name="{0}">{1}</parameter>\n')
        + "</invoke>\n"
        for name, a in _CALLS
    )
    dsml = "\n".join(
        f'<｜DSML｜invoke name="{name}">\n'
        + _tagged(a, '<｜DSML｜parameter name="{0}" string="{2}">{1}</｜DSML｜parameter>\n')
        + "</｜DSML｜invoke>"
        for name, a in _CALLS
    )
    m1 = "\n".join(f'{{"name": "{name}", "arguments": {_json(a)}}}' for name, a in _CALLS)
    llama = "; ".join(f'{{"name": "{name}", "parameters": {_json(a)}}}' for name, a in _CALLS)
    mistral = ", ".join(
        f'{{"name": "{name}", "arguments": {_json(a)}, "id": "abcdefghi"}}' for name, a in _CALLS
    )
    v11 = "".join(f"[TOOL_CALLS]{name}[ARGS]{_json(a)}" for name, a in _CALLS)
    harmony = "<|start|>assistant".join(
        f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{_json(a)}<|call|>"
        for name, a in _CALLS
    )
    return {
        "hermes": f"Let me see.\n{hermes}",
        "qwen3-coder": f"Let me see.\n\n{coder}",
        "glm": f"Let me see.\n{glm}",
        "deepseek-v3": f"Let me see.<｜tool▁calls▁begin｜>{v3}<｜tool▁calls▁end｜>",
        "deepseek-v3.1": f"Let me see.<｜tool▁calls▁begin｜>{v31}<｜tool▁calls▁end｜>",
        "kimi-k2": f"Let me see.<|tool_calls_section_begin|>{kimi}<|tool_calls_section_end|>",
        "minimax-m2": f"Let me see.\n<minimax:tool_call>\n{minimax}</minimax:tool_call>",
        "deepseek-v3.2": (
            f"Let me see.\n\n<｜DSML｜function_calls>\n{dsml}\n</｜DSML｜function_calls>"
        ),
        "deepseek-v4": f"Let me see.\n\n<｜DSML｜tool_calls>\n{dsml}\n</｜DSML｜tool_calls>",
        "minimax-m1": f"Let me see.\n<tool_calls>\n{m1}\n</tool_calls>",
        "llama3": f"Let me see.<|python_tag|>{llama}",
        "mistral": f"Let me see.[TOOL_CALLS][{mistral}]",
        "mistral-v11": f"Let me see.{v11}",
        "harmony": f"<|channel|>final<|message|>Let me see.<|end|><|start|>assistant{harmony}",
    }


ANSWERS = _answers()
EXPECTED = _CALLS
