"""JSON schemas of answers and of the arguments of tools: usual ones, hard ones to compile, and some
that no text matches."""

from __future__ import annotations

import random
from typing import Any

from fuzzing.json_values import anything, name

_HARD: tuple[Any, ...] = (
    {"$ref": "#"},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"$ref": "https://example.com/schema.json"},
    {"$ref": "#/nowhere"},
    {"type": "string", "pattern": "(a+)+$"},
    {"type": "string", "pattern": "(((a{1,30}){1,30}){1,30}){1,30}"},
    {"type": "string", "pattern": "(?<=a)b\\1"},
    {"type": "string", "pattern": "["},
    {"type": "string", "minLength": 10**9},
    {"type": "string", "minLength": 5, "maxLength": 2},
    {"type": "string", "format": "date-time"},
    {"type": "string", "format": "of my own"},
    {"type": "array", "minItems": 10**7, "items": {"type": "integer"}},
    {"type": "array", "minItems": -1},
    {"type": "integer", "minimum": 10**30, "maximum": -1},
    {"type": "number", "multipleOf": 1e-300},
    {"type": "nothing"},
    {"type": []},
    {"enum": []},
    {"enum": ["x" * 5000, None, 1.5, {"a": [1]}]},
    {"const": float(10**300)},
    {"not": {}},
    {"allOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [{"type": "string"}, {"type": "string"}]},
    {"anyOf": []},
    {"properties": {"a": False}, "required": ["a"]},
    {"required": ["never named"]},
    {"patternProperties": {"^a": {"type": "string"}}},
    {"properties": {f"p{number}": {"type": "string"} for number in range(300)}},
    {"x-guidance": {"whitespace_flexible": "yes"}},
    {"type": "object", "additionalProperties": {"$ref": "#"}},
)


def usual(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """One that describes values; its answer may be long."""
    kinds = ("string", "integer", "boolean", "null", *(("object", "array") if depth else ()))
    kind = rng.choice(kinds)
    made: dict[str, Any] = {"type": kind}
    if kind == "object":
        names = sorted({name(rng) for _ in range(rng.randint(1, 3))})
        made["properties"] = {each: usual(rng, depth - 1) for each in names}
        made["required"] = names
    elif kind == "array":
        made |= {"items": usual(rng, depth - 1), "maxItems": rng.randint(0, 4)}
    return made


def of_object(rng: random.Random) -> dict[str, Any]:
    properties = {name(rng): usual(rng) for _ in range(rng.randint(1, 3))}
    return {"type": "object", "properties": properties, "required": sorted(properties)}


def any_schema(rng: random.Random) -> Any:
    if rng.random() < 0.3:
        return nested(rng.choice((20, 100, 400)))
    drawn = rng.choice((rng.choice(_HARD), of_object(rng), anything(rng)))
    return drawn if isinstance(drawn, dict) else {"properties": {"a": drawn}}


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        made = {"type": "object", "properties": {"a": made}, "required": ["a"]}
    return made
