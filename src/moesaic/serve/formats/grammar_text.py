"""Grammars of tool calls as Lark text for llguidance, put together from a format's pieces."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.sampling.grammar import close_objects
from moesaic.serve.formats.schemas import Tool, function_of, parameters_of, types_of
from moesaic.serve.formats.stream import first_of

# JSON as templates write it: were any white space allowed, a model could write it for ever.
_SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SHARED = ("$defs", "definitions")


class GrammarText:
    """`tokens` are markers that are one token of the model, added to its vocabulary: they are
    demanded as that token, all others as text."""

    def __init__(
        self, tools: Sequence[Tool], parallel: bool = True, tokens: Mapping[str, int] | None = None
    ) -> None:
        self._names = [str(function_of(tool).get("name")) for tool in tools]
        self._schemas = parameters_of(tools)
        self._parallel = parallel
        self._tokens = tokens or {}
        self._rules: list[str] = []

    def build(self, start: str) -> str:
        return "\n".join([f"start: {start}", *self._rules, ""])

    # Pieces: each is a text that may stand in the body of a rule.

    def text(self, text: str) -> str:
        before, token, after = self._split(text)
        if not token:
            return quoted(text)
        parts = [quoted(before) if before else "", token, self.text(after) if after else ""]
        return sequence(parts)

    def free_text(self, end: str, after: str = "") -> str:
        """Any text up to the marker `end`, which is part of it, and the text `after`."""
        before, token, rest = self._split(end)
        if not token:
            return self.rule("/(?s:.*)/", f"[suffix={quoted(end + after)}]")
        # No expression matches a token of this kind: the text ends before it.
        text = self.rule(f"/(?s:.*){re.escape(before).replace('/', chr(92) + '/')}/")
        return sequence([text, token, self.text(rest + after) if rest + after else ""])

    def _split(self, text: str) -> tuple[str, str, str]:
        """The text before the first added token, that token, and the text after it."""
        found = first_of(text, tuple(self._tokens))
        if found is None:
            return text, "", ""
        place, token = found
        return text[:place], f"<[{self._tokens[token]}]>", text[place + len(token) :]

    def json(self, schema: Mapping[str, Any]) -> str:
        try:
            whole = {**deepcopy(dict(schema)), "x-guidance": _SPACING}
            close_objects(whole)
            return self.rule(f"%json {json.dumps(whole)}")
        except RecursionError:
            raise ImpossibleSetting(
                "a tool's arguments are nested too deeply to be enforced: describe them with fewer "
                "levels, or let the model decide whether it calls (tool_choice auto)"
            ) from None

    def rule(self, body: str, attributes: str = "") -> str:
        name = f"rule_{len(self._rules)}"
        self._rules.append(f"{name}{attributes}: {body}")
        return name

    def calls(self, call: str, separator: str = "") -> str:
        """One call, or several where they are allowed."""
        name = self.rule(call)
        return f"{name} ({sequence([separator, name])})*" if self._parallel else name

    def each_tool(self, write: Callable[[str, Mapping[str, Any]], str]) -> str:
        """One alternative per tool, made from its name and the schema of its arguments."""
        written = (self.rule(write(name, self._object(name))) for name in self._names)
        return f"({' | '.join(written)})"

    def each_json_call(
        self, keys: tuple[str, str] = ("name", "arguments"), further: str = ""
    ) -> str:
        """`{"name": ..., "arguments": ...}`, and `further` before its end."""
        name_key, arguments_key = map(json.dumps, keys)

        def write(name: str, schema: Mapping[str, Any]) -> str:
            head = f"{{{name_key}: {json.dumps(name)}, {arguments_key}: "
            return sequence([quoted(head), self.json(schema), further, quoted("}")])

        return self.each_tool(write)

    def members(
        self,
        schema: Mapping[str, Any],
        head: Callable[[str], str],
        end: str,
        after: str = "",
    ) -> str:
        """Arguments one by one in the schema's order: what `head` makes of the name, the value and
        the marker `end`, then the text `after`. Optional ones may be left out."""
        written = []
        properties, required = schema.get("properties"), schema.get("required")
        for name, described in properties.items() if isinstance(properties, Mapping) else ():
            value = self._value(schema, name, described, end, after)
            needed = isinstance(required, list | tuple) and name in required
            written.append(f"{self.rule(f'{head(name)} {value}')}{'' if needed else '?'}")
        return " ".join(written)

    def _value(
        self, schema: Mapping[str, Any], name: str, described: Any, end: str, after: str
    ) -> str:
        if types_of(schema, name) != {"string"}:
            shared = {key: schema[key] for key in _SHARED if key in schema}
            described = described if isinstance(described, Mapping) else {}
            return f"{self.json({**shared, **described})} {self.text(end + after)}"
        choices = described.get("enum")
        if not isinstance(choices, list | tuple) or not choices:
            return self.free_text(end, after)
        texts = [each if isinstance(each, str) else json.dumps(each) for each in choices]
        return f"({' | '.join(map(quoted, texts))}) {self.text(end + after)}"

    def _object(self, name: str) -> Mapping[str, Any]:
        return {"type": "object", "properties": {}, **self._schemas[name]}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def sequence(parts: Iterable[str]) -> str:
    return " ".join(part for part in parts if part)
