"""Grammars that make a model call tools: what `SamplingParams.grammar` is for such a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.serve.formats.detect import FormatChoice
from moesaic.serve.formats.grammar_text import GrammarText, sequence
from moesaic.serve.formats.schemas import Tool, function_of


@dataclass(frozen=True, slots=True)
class Required:
    """At least one call, of any tool, or of those with these names."""

    parallel: bool = True  # several calls are allowed, where the format can have several
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Named:
    """One call of this function."""

    name: str


def tool_grammar(
    choice: FormatChoice,
    tools: Sequence[Tool],
    mode: Required | Named,
    tokens: Mapping[str, int] | None = None,
) -> str:
    """Lark text for llguidance: reasoning where the model reasons, then calls in its own format
    with arguments as their schemas demand. `tokens` are the ids of tokens that were added to the
    model's vocabulary (`Tokenizer.added`): markers among them are demanded as these tokens."""
    write = choice.tools.grammar
    if write is None:
        raise ImpossibleSetting(
            f"tool calls are to be enforced, but the tool format {choice.tools.name!r} has no "
            "calls: choose the format that the model was trained on"
        )
    chosen = _chosen(tools, mode)
    markers = {text: id for text, id in (tokens or {}).items() if text in choice.keeps_special}
    grammar = GrammarText(chosen, isinstance(mode, Required) and mode.parallel, markers)
    before = choice.reasoning.grammar(grammar, choice.reasoning_open)
    return grammar.build(sequence([before, write(grammar)]))


def _chosen(tools: Sequence[Tool], mode: Required | Named) -> Sequence[Tool]:
    if not tools:
        raise ImpossibleSetting("tool calls are to be enforced, but there are no tools: give some")
    wanted = mode.names if isinstance(mode, Required) else (mode.name,)
    if wanted is None:
        return tools
    names = [str(function_of(tool).get("name")) for tool in tools]
    for name in wanted:
        if name not in names:
            raise UnknownName("function", name, names)
    return [tools[names.index(name)] for name in dict.fromkeys(wanted)]
