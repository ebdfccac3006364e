"""In which form the answers to one request are written and read: the model's formats of tool calls
and of reasoning, as far as the request has use for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.serve.api_error import impossible
from moesaic.serve.conversation import tools_of
from moesaic.serve.events import OutputParser
from moesaic.serve.formats.detect import FormatChoice
from moesaic.serve.formats.grammars import Named, Required, tool_grammar
from moesaic.serve.formats.one_call import OneCall
from moesaic.serve.formats.plain import PLAIN
from moesaic.serve.schemas import ChatRequest
from moesaic.serve.tool_choice import tool_choice_of

_END = 64  # tokens of a prompt, in which reasoning may be opened


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    choice: FormatChoice
    tools: Sequence[Mapping[str, Any]]
    enforced: Required | Named | None  # None: the model decides whether it calls
    parallel: bool = True  # several calls are wanted, where the model writes them

    def parser(self) -> OutputParser:
        """For one answer."""
        parser = self.choice.parser(self.tools)
        return parser if self.parallel else OneCall(parser)

    def params(self, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """With what the parser must see, and with a grammar where a call is demanded."""
        kept = (*params.keep_special_tokens, *self.choice.keeps_special)
        params = replace(params, keep_special_tokens=kept)
        if self.enforced is None:
            return params
        if params.form is not None:
            raise impossible(
                "a tool call is demanded, and a schema, a grammar or a regular expression "
                "(response_format, for example) demands another answer: leave out one of the two",
                "tool_choice",
            )
        grammar = tool_grammar(self.choice, self.tools, self.enforced, tokenizer.added)
        return replace(params, grammar=grammar)


def answer_format(
    formats: FormatChoice, asked: ChatRequest, tokens: Sequence[int], tokenizer: Tokenizer
) -> AnswerFormat:
    """`formats` are the model's, `tokens` the prompt. Without tools, what looks like a call is
    text."""
    enforced, tools = tool_choice_of(asked).demanded, tools_of(asked)
    if enforced is not None and not tools:
        raise impossible(
            "tool_choice demands a call, but there are no tools: give some", "tool_choice"
        )
    if not tools and not formats.tools.reasons:
        formats = replace(formats, tools=PLAIN)
    end = tokenizer.decode(list(tokens[-_END:]), skip_special=False)
    parallel = asked.parallel_tool_calls is not False
    return AnswerFormat(formats.for_prompt(end), tools, enforced, parallel)
