"""The formats of tool calls and of reasoning, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from moesaic.core.errors import UnknownName
from moesaic.serve.formats import invoke_tags, reasoning
from moesaic.serve.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V3_1
from moesaic.serve.formats.glm import GLM
from moesaic.serve.formats.harmony import HARMONY
from moesaic.serve.formats.hermes import HERMES
from moesaic.serve.formats.kimi_k2 import KIMI_K2
from moesaic.serve.formats.llama3 import LLAMA3
from moesaic.serve.formats.minimax_m1 import MINIMAX_M1
from moesaic.serve.formats.mistral import MISTRAL, MISTRAL_V11
from moesaic.serve.formats.plain import PLAIN
from moesaic.serve.formats.qwen3_coder import QWEN3_CODER
from moesaic.serve.formats.reasoning import ReasoningForm
from moesaic.serve.formats.tool_format import ToolFormat

T = TypeVar("T")

_ALL = (
    *(PLAIN, HERMES, QWEN3_CODER, HARMONY, GLM, DEEPSEEK_V3, DEEPSEEK_V3_1, KIMI_K2),
    *(invoke_tags.DEEPSEEK_V3_2, invoke_tags.DEEPSEEK_V4, invoke_tags.MINIMAX_M2, MINIMAX_M1),
    *(LLAMA3, MISTRAL, MISTRAL_V11),
)
TOOL_FORMATS: Mapping[str, ToolFormat] = {each.name: each for each in _ALL}
REASONING_FORMS: Mapping[str, ReasoningForm] = {
    form.name: form for form in (reasoning.NONE, reasoning.THINK, reasoning.MISTRAL)
}


def tool_format(name: str) -> ToolFormat:
    return _named("tool format", name, TOOL_FORMATS)


def reasoning_form(name: str) -> ReasoningForm:
    return _named("reasoning form", name, REASONING_FORMS)


def _named(kind: str, name: str, known: Mapping[str, T]) -> T:
    if name not in known:
        raise UnknownName(kind, name, known)
    return known[name]
