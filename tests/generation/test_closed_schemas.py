"""Does an object of a JSON schema have the properties that the schema names, and no others, unless
the schema says otherwise? And can every text still be written that combines several schemas?"""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.sampling.constraint import Constraints
from moesaic.models.bundled_model import default_model
from moesaic.models.text.tokenizer import Tokenizer

INTEGER = {"type": "integer"}


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


A, B = an_object(a=INTEGER), an_object(b=INTEGER)
NEEDS_A, NEEDS_B = A | {"required": ["a"]}, B | {"required": ["b"]}
TREE = an_object(v=INTEGER, kids={"type": "array", "items": {"$ref": "#/$defs/T"}})
IN_A = {"$ref": "#/$defs/A"}

# schema, texts that match it, texts that cannot go on
CLOSED: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "named properties": (A, ['{"a": 1}', "{}"], ['{"z']),
    "no properties": (an_object(), ["{}"], ['{"']),
    "in objects": (an_object(o=A), ['{"o": {"a": 1}}'], ['{"o": {"z']),
    "in arrays": ({"type": "array", "items": A}, ['[{"a": 1}]'], ['[{"z']),
    "in other properties": (A | {"additionalProperties": B}, ['{"z": {"b": 1}}'], ['{"z": {"c']),
    "required without a property": (A | {"required": ["b"]}, ['{"a": 1, "b": "x"}'], ['{"z']),
    "alternatives": ({"anyOf": [A, B]}, ['{"a": 1}', '{"b": 1}'], ['{"z', '{"a": 1, "b']),
    "one of them": ({"oneOf": [NEEDS_A, NEEDS_B]}, ['{"a": 1}', '{"b": 1}'], ['{"z']),
    "all of them": ({"allOf": [A, B]}, ['{"a": 1, "b": 2}'], ['{"z']),
    "all, of one object inside": (
        {"allOf": [an_object(o=A), an_object(o=B)]}, ['{"o": {"a": 1, "b": 2}}'], ['{"z']
    ),
    "with alternatives": (
        B | {"anyOf": [NEEDS_A, an_object(c=INTEGER)]}, ['{"b": 1, "a": 2}'], ['{"z']
    ),
    "by reference": (an_object(o=IN_A) | {"$defs": {"A": A}}, ['{"o": {"a": 1}}'], ['{"o": {"z']),
    "as pydantic writes it": (
        an_object(o={"title": "O", "allOf": [IN_A]}) | {"$defs": {"A": A}},
        ['{"o": {"a": 1}}'], ['{"o": {"z'],
    ),
    "extended": ({"allOf": [IN_A, B], "$defs": {"A": A}}, ['{"a": 1, "b": 2}'], ['{"z']),
    "a reference and more": (B | IN_A | {"$defs": {"A": A}}, ['{"b": 2, "a": 1}'], ['{"z']),
    "recursive": (
        {"$ref": "#/$defs/T", "$defs": {"T": TREE}},
        ['{"v": 1, "kids": [{"v": 2}]}'], ['{"z', '{"kids": [{"z'],
    ),
}  # fmt: skip
# schema, texts that match it
OPEN: dict[str, tuple[dict[str, Any], str]] = {
    "any object": ({"type": "object"}, '{"z": 1}'),
    "asked for": (A | {"additionalProperties": True}, '{"z": 1}'),
    "by a pattern": (A | {"patternProperties": {"^z": INTEGER}}, '{"z": 1}'),
    "name and pattern": (
        an_object(o=A) | {"patternProperties": {"^o": B}}, '{"o": {"a": 1, "b": 2}}'
    ),
    "more than are named": (NEEDS_A | {"minProperties": 2}, '{"a": 1, "z": 2}'),
    "one of all says so": ({"allOf": [A, B | {"additionalProperties": True}]}, '{"z": 1}'),
    "extended elsewhere": (
        an_object(one=IN_A, two={"allOf": [IN_A, B]}) | {"$defs": {"A": A}},
        '{"one": {"z": 1}, "two": {"a": 1, "b": 2}}',
    ),
    "by an anchor": (
        an_object(o={"allOf": [{"$ref": "#x"}, B]}) | {"$defs": {"A": A | {"$anchor": "x"}}},
        '{"o": {"a": 1, "b": 2}}',
    ),
}  # fmt: skip


@cache
def bundled() -> tuple[Tokenizer, Constraints]:
    tokenizer = Tokenizer.open(default_model())
    return tokenizer, Constraints(tokenizer, tokenizer.eos_ids)


def matches(schema: dict[str, Any], text: str) -> bool | None:
    """None: no text that begins so can match."""
    tokenizer, constraints = bundled()
    constraint = constraints.of(SamplingParams(json_schema=schema))
    assert constraint is not None
    for token in tokenizer.encode(text, special=False):
        if constraint.failure is not None or constraint.forbidden(tokenizer.vocabulary)[token]:
            return None
        constraint.advance(token)
    return constraint.accepting


@pytest.mark.parametrize("name", CLOSED)
def test_other_properties_are_excluded(name: str) -> None:
    schema, fine, wrong = CLOSED[name]
    assert [matches(schema, text) for text in fine] == [True] * len(fine)
    assert [matches(schema, text) for text in wrong] == [None] * len(wrong)


@pytest.mark.parametrize("name", OPEN)
def test_what_the_schema_leaves_open_stays_open(name: str) -> None:
    schema, text = OPEN[name]
    assert matches(schema, text)


def test_the_schema_is_kept_as_it_was_given() -> None:
    given = json.dumps(A)
    assert SamplingParams(json_schema=given).json_schema == given


@pytest.mark.parametrize("odd", [{"properties": 3}, {"allOf": 3}, {"$ref": 3}, {"$ref": "#/no"}])
def test_a_malformed_schema_is_the_callers_mistake(odd: dict[str, Any]) -> None:
    with pytest.raises(ImpossibleSetting, match="json_schema: "):
        SamplingParams(json_schema=an_object(o=odd))


def test_a_deep_schema_is_walked() -> None:
    schema = A
    for _ in range(50):
        schema = an_object(o=schema)
    assert matches(schema, '{"o": {"z') is None


def test_the_bundled_model_ends_an_object() -> None:
    """Where it may write keys of its own, it writes one until `max_tokens`."""
    schema = an_object(sum=INTEGER) | {"required": ["sum"]}
    schemas = [schema, schema | {"additionalProperties": True}]
    params = [SamplingParams(32, temperature=0.0, json_schema=each) for each in schemas]
    with LLM(threads=1) as model:
        prompt = model.tokenizer.encode_chat([{"role": "user", "content": "47 plus 38 is "}])
        closed, left_open = model.generate([prompt, prompt], params)
    assert closed.finish_reason == "stop"
    assert list(json.loads(closed.text or "")) == ["sum"]
    assert left_open.finish_reason == "incomplete"
