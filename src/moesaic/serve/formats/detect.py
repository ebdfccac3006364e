"""Which formats a model writes, from its chat template.

The template decides: it writes earlier calls of a conversation as the model was trained to write
them, so the marker that it contains is the model's. `model_type` decides where there is no
template, or none of its markers is known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from moesaic.serve.events import OutputParser
from moesaic.serve.formats.reasoning import ReasoningForm
from moesaic.serve.formats.registry import reasoning_form, tool_format
from moesaic.serve.formats.schemas import Tool
from moesaic.serve.formats.tool_format import ToolFormat


@dataclass(frozen=True, slots=True)
class FormatChoice:
    """`reasoning_open` says whether the prompt's end opens the reasoning."""

    tools: ToolFormat
    reasoning: ReasoningForm
    reasoning_open: bool = False

    @property
    def keeps_special(self) -> tuple[str, ...]:
        """Special tokens that must be kept in the text, for the parser to see them."""
        return (*self.tools.keeps_special, *self.reasoning.keeps_special)

    def for_prompt(self, prompt: str) -> FormatChoice:
        """The same for one prompt, as the template has rendered it: whether reasoning is open may
        depend on the request."""
        return replace(self, reasoning_open=self.reasoning.is_open(prompt))

    def parser(self, tools: Sequence[Tool] = ()) -> OutputParser:
        """A parser for one answer. `tools` are those of the request: their schemas give types to
        arguments that are written without quotes."""
        inner = self.tools.parser(tools)
        return self.reasoning.parser(inner, self.reasoning_open, self.tools.ends_reasoning)


def choose(tools: str, reasoning: str = "none", reasoning_open: bool = False) -> FormatChoice:
    """Formats by their names."""
    return FormatChoice(tool_format(tools), reasoning_form(reasoning), reasoning_open)


def detect(
    template: str | None,
    model_type: str | None,
    tools: str | None = None,
    reasoning: str | None = None,
) -> FormatChoice:
    """The formats of a model. `tools` and `reasoning` are names that override what is found."""
    text, kind = template or "", model_type or ""
    format = tool_format(tools or _tools_of(text, kind))
    form = reasoning_form(reasoning or _reasoning_of(text, kind, format))
    return FormatChoice(format, form, _opens(text, form))


# Tool format -> texts that its templates contain, all of them; the first that fits is chosen.
_MARKERS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("harmony", ("<|channel|>", "<|message|>")),
    ("deepseek-v3.2", ("｜DSML｜", "function_calls>")),
    ("deepseek-v4", ("｜DSML｜",)),
    ("kimi-k2", ("<|tool_calls_section_begin|>",)),
    ("minimax-m2", ("<minimax:tool_call>", "<invoke")),
    ("minimax-m1", ("<tool_calls>", '"arguments"', "<beginning_of_sentence>")),
    ("glm", ("<arg_key>", "<arg_value>")),
    ("qwen3-coder", ("<tool_call>", "<function=", "<parameter=")),
    ("mistral-v11", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    # Tags that look alike and are not read: MiniMax-M3, Apriel.
    ("plain", ("<tool_call>", "<invoke")),
    ("plain", ("<tool_calls>[",)),
    ("hermes", ("<tool_call>", "arguments")),
    ("llama3", ("<|start_header_id|>", '"parameters"')),
)
_DEEPSEEK = "<｜tool▁call▁begin｜>"
_FENCED = re.compile(r"```json|<｜tool▁call▁begin｜>(function|'\s*\+\s*tool\['type'\])")

# How `model_type` begins -> tool format.
_OF_TYPE = (
    ("gpt_oss", "harmony"),
    ("deepseek_v4", "deepseek-v4"),
    ("deepseek_v32", "deepseek-v3.2"),
    ("deepseek", "deepseek-v3"),
    ("kimi_k2", "kimi-k2"),
    ("minimax_m2", "minimax-m2"),
    ("minimax", "minimax-m1"),
    ("glm4_moe", "glm"),
    ("glm_moe", "glm"),
    ("qwen3_next", "hermes"),
    ("qwen3_5", "qwen3-coder"),
    ("qwen", "hermes"),
    ("mixtral", "mistral"),
    ("mistral", "mistral"),
    ("llama", "llama3"),
)
_REASONING_TYPES = ("qwen3", "glm4_moe", "glm_moe", "deepseek_v3", "deepseek_v4", "minimax")


def _tools_of(template: str, model_type: str) -> str:
    if _DEEPSEEK in template:
        return "deepseek-v3" if _FENCED.search(template) else "deepseek-v3.1"
    for name, markers in _MARKERS:
        if all(marker in template for marker in markers):
            return name
    if template:
        return "plain"  # it has no place for calls
    return next((name for start, name in _OF_TYPE if model_type.startswith(start)), "plain")


def _reasoning_of(template: str, model_type: str, tools: ToolFormat) -> str:
    if tools.reasons:
        return "none"
    if "[THINK]" in template:
        return "mistral"
    if tools.name == "minimax-m1" or not template:  # M1's template removes no reasoning
        return "think" if model_type.startswith(_REASONING_TYPES) or template else "none"
    return "think" if "<think>" in template or "</think>" in template else "none"


def _opens(template: str, form: ReasoningForm) -> bool:
    """Whether the last thing that the template writes is the tag that opens the reasoning, as far
    as its source says: `FormatChoice.for_prompt` knows."""
    if not form.begin:
        return False
    end = template[template.rfind("add_generation_prompt") :]
    tag = re.escape(form.begin)
    return bool(re.search(rf"{tag}(?:\\n|\s)*['\"}}{{]|{tag}\s*$", end)) or bool(
        re.search(r"set thinking_start_token\b", template) and "thinking_start_token" in end
    )
