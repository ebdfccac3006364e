"""MiniMax-M2 and DeepSeek-V3.2 and V4: a block of `<invoke name="NAME">` with `<parameter
name="KEY">value</parameter>`. DeepSeek's tags begin with a mark, and state whether a value is a
string."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moesaic.serve.formats.calls import Calls
from moesaic.serve.formats.grammar_text import GrammarText, quoted, sequence
from moesaic.serve.formats.schemas import types_of
from moesaic.serve.formats.stream import Malformed, Steps, Stream
from moesaic.serve.formats.tagged_arguments import STRING, read_value
from moesaic.serve.formats.tool_format import ToolFormat, text_with_calls

_HEAD = re.compile(r"[^<>\n]{0,512}")
_NAME = re.compile(r'\s*"?([^\s"<>]+)"?\s*')
_PARAMETER_HEAD = re.compile(r'\s*"?([^"<>]+?)"?\s*(?:string="(true|false)")?\s*')
_NOT_STRING = frozenset({"number", "integer", "boolean", "array", "object", "null"})


@dataclass(frozen=True, slots=True)
class InvokeTags:
    block: str  # the name of the tag around all calls
    mark: str = ""  # before the names of tags
    states_strings: bool = False

    def opening(self, name: str) -> str:
        return f"<{self.mark}{name}"

    def closing(self, name: str) -> str:
        return f"</{self.mark}{name}>"

    def read_calls(self, stream: Stream, calls: Calls, start: str) -> Steps[None]:
        invoke, block_end = f"{self.opening('invoke')} name=", self.closing(self.block)
        yield from stream.skip_space()
        yield from stream.take(invoke)
        while True:
            yield from self._read_one(stream, calls)
            if not (yield from stream.take_if(invoke)):
                break
        yield from stream.take_if(block_end)

    def _read_one(self, stream: Stream, calls: Calls) -> Steps[None]:
        parameter, end = f"{self.opening('parameter')} name=", self.closing("invoke")
        found = _NAME.fullmatch((yield from stream.match(_HEAD, ">")))
        if not found:
            raise Malformed
        yield from stream.skip_space()
        tag = yield from stream.take_first((parameter, end))
        yield calls.begin(found.group(1))
        while tag == parameter:
            stream.keep(len(tag))
            yield from self._read_parameter(stream, calls)
            stream.keep()
            yield from stream.skip_space()
            tag = yield from stream.take_first((parameter, end))
        yield calls.close_object()
        yield calls.end()
        stream.keep()

    def _read_parameter(self, stream: Stream, calls: Calls) -> Steps[None]:
        head = _PARAMETER_HEAD.fullmatch((yield from stream.match(_HEAD, ">")))
        if not head:
            raise Malformed
        argument, is_string = head.groups()
        types = {None: None, "true": STRING, "false": _NOT_STRING}[is_string]
        yield from read_value(stream, calls, argument, (self.closing("parameter"),), types)

    def grammar(self, grammar: GrammarText) -> str:
        def write(name: str, schema: Mapping[str, Any]) -> str:
            def head(argument: str) -> str:
                is_string = str(types_of(schema, argument) == STRING).lower()
                stated = f' string="{is_string}"' if self.states_strings else ""
                return grammar.text(f'{self.opening("parameter")} name="{argument}"{stated}>')

            members = grammar.members(schema, head, self.closing("parameter"), "\n")
            head_line = grammar.text(f'{self.opening("invoke")} name="{name}">\n')
            return sequence([head_line, members, grammar.text(f"{self.closing('invoke')}\n")])

        block = self.opening(self.block) + ">"
        several = grammar.calls(grammar.each_tool(write))
        end = grammar.text(self.closing(self.block))
        return sequence([grammar.text(block), quoted("\n"), several, end])

    def format(self, name: str) -> ToolFormat:
        block = self.opening(self.block) + ">"
        return ToolFormat(
            name,
            text_with_calls((block,), self.read_calls),
            keeps_special=(block, self.closing(self.block), *((self.mark,) if self.mark else ())),
            grammar=self.grammar,
        )


MINIMAX_M2 = InvokeTags("minimax:tool_call").format("minimax-m2")
DEEPSEEK_V3_2 = InvokeTags("function_calls", "｜DSML｜", True).format("deepseek-v3.2")
DEEPSEEK_V4 = InvokeTags("tool_calls", "｜DSML｜", True).format("deepseek-v4")
