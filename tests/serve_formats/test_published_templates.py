"""Are calls that a published chat template writes read back as they were?

Templates are looked for in ../shared/data/chat-templates, or in the folder that MOESAIC_TEMPLATES
names, as *.jinja."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from format_answers import TOOLS, calls_of, parsed
from transformers.utils.chat_template_utils import render_jinja_template

from moesaic.serve.formats.detect import FormatChoice, detect

_SHARED = Path(__file__).parents[3] / "shared" / "data" / "chat-templates"
TEMPLATES = sorted(Path(os.environ.get("MOESAIC_TEMPLATES", _SHARED)).glob("*.jinja"))
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("weather", {"city": "Paris", "days": 3}),
    ("write_file", {"path": "a.py", "content": 'if a < b: print("{\\n}")\nx'}),
]
_ENDS = ("<|im_end|>", "</s>", "[e~[", "<end_of_sentence>", "<｜end▁of▁sentence｜>", "<|eot_id|>")


_HEADS = ("<|start|>assistant", "<|end_header_id|>\n\n", "ai name=assistant\n", "<｜Assistant｜>")
_EMPTY = {"type": "object", "properties": {}}


def rendered(template: str, count: int, as_text: bool, content: str | None) -> str:
    calls = [
        {
            "id": f"abcdefgh{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(a) if as_text else a},
        }
        for number, (name, a) in enumerate(CALLS[:count])
    ]
    messages = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": content, "tool_calls": calls},
    ]
    tools = [
        {**tool, "function": {"description": "-", "parameters": _EMPTY, **tool["function"]}}
        for tool in TOOLS[:2]
    ]
    texts, _ = render_jinja_template(
        conversations=[messages],
        tools=tools,
        chat_template=template,
        bos_token="<s>",
        eos_token="</s>",
    )
    return str(texts[0])


def test_there_are_templates() -> None:
    if not TEMPLATES:
        pytest.skip(f"no *.jinja in {_SHARED}")


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.stem)
def test_calls_survive_the_round_trip(path: Path) -> None:
    template = path.read_text()
    choice = detect(template, None)
    if choice.tools.name == "plain":
        pytest.skip("its calls are not read")
    refusals, answers = [], []
    for count, as_text, content in product((2, 1), (False, True), ("Look.", None)):
        try:
            whole = rendered(template, count, as_text, content)
        except Exception as error:  # some take one call alone, or arguments as text alone
            refusals.append(str(error))
            continue
        answer = whole
        for head in (*_HEADS, "Look."):
            answer = answer.rpartition(head)[2]
        for end in _ENDS:
            answer = answer.partition(end)[0]
        found = parsed(FormatChoice(choice.tools, choice.reasoning), answer)
        if calls_of(found) == CALLS[:count]:
            return
        answers.append(answer[-300:])
    if not answers:
        pytest.skip(f"transformers does not render it: {refusals[0]}")
    pytest.fail("\n".join(answers))
