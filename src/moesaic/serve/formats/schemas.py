"""What a tool's schema says about an argument, for formats that write values without quotes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

Tool = Mapping[str, Any]  # {"name", "parameters", ...}, or that under "function"

_STRING = frozenset({"string"})
_DEPTH = 16  # of references and alternatives; a schema may refer to itself
_AS_PYTHON = {"True": "true", "False": "false", "None": "null"}  # as templates print them


def function_of(tool: Tool) -> Mapping[str, Any]:
    inner = tool.get("function")
    return inner if isinstance(inner, Mapping) else tool


def parameters_of(tools: Sequence[Tool]) -> dict[str, Mapping[str, Any]]:
    """The schema of every tool's arguments, by the tool's name."""
    found = {}
    for function in map(function_of, tools):
        schema = function.get("parameters") or function.get("input_schema") or {}
        found[str(function.get("name"))] = schema if isinstance(schema, Mapping) else {}
    return found


def types_of(schema: Mapping[str, Any], argument: str) -> frozenset[str]:
    """The JSON types that an argument may have; none: the schema does not say."""
    properties = schema.get("properties")
    described = properties.get(argument) if isinstance(properties, Mapping) else None
    return _types(described, schema, _DEPTH)


def json_of(value: str, types: frozenset[str]) -> str:
    """A value as JSON: what reads as JSON of an allowed type is that value, else it is a string."""
    text = value.strip()
    text = _AS_PYTHON.get(text, text)
    if types != _STRING:
        kind = _kind(text)
        if kind is not None and (not types or kind & types):
            return text
    return json.dumps(value, ensure_ascii=False)


def _kind(text: str) -> frozenset[str] | None:
    """The types that a JSON text belongs to; None: it is no JSON."""
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None
    if isinstance(value, bool):
        return frozenset({"boolean"})
    if isinstance(value, int | float):
        whole = isinstance(value, int) or value.is_integer()
        return frozenset({"number", "integer"} if whole else {"number"})
    names = {str: "string", list: "array", dict: "object", type(None): "null"}
    return frozenset({names[type(value)]})


def _refuse(name: str) -> None:
    raise ValueError(name)  # NaN and Infinity are no JSON


def _types(schema: object, root: Mapping[str, Any], depth: int) -> frozenset[str]:
    if not isinstance(schema, Mapping) or depth == 0:
        return frozenset()
    stated = schema.get("type")
    if stated is not None:
        return frozenset(map(str, stated if isinstance(stated, list | tuple) else [stated]))
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if isinstance(values, list | tuple):
        return frozenset().union(*(_kind(json.dumps(each)) or () for each in values))
    if isinstance(schema.get("$ref"), str):
        return _types(_target(schema["$ref"], root), root, depth - 1)
    return _types_of_parts(schema, root, depth)


def _types_of_parts(
    schema: Mapping[str, Any], root: Mapping[str, Any], depth: int
) -> frozenset[str]:
    for name in ("anyOf", "oneOf", "allOf"):
        parts = schema.get(name)
        if isinstance(parts, list | tuple):
            found = [_types(part, root, depth - 1) for part in parts]
            if name != "allOf" and not all(found):
                return frozenset()  # an alternative that does not say
            return frozenset().union(*found)
    return frozenset()


def _target(reference: str, root: Mapping[str, Any]) -> object:
    found: object = root
    for word in reference.removeprefix("#").split("/")[1:]:
        key = word.replace("~1", "/").replace("~0", "~")
        found = found.get(key) if isinstance(found, Mapping) else None
    return found
