"""What a request's text must look like: a JSON schema, a grammar or a regular expression, in the
words of llguidance, which says at every token what may follow. Needs no model."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from moesaic.core.errors import ImpossibleSetting, MissingExtra, printable

if TYPE_CHECKING:
    from llguidance import LLTokenizer


_MAX_TEXT = 1 << 20  # characters of a schema, a grammar or an expression
# JSON as `json.dumps` writes it: were any white space allowed, a model could write it for ever.
_JSON: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def schema_text(schema: object) -> str:
    """A schema as JSON text, whether it was given as text or as a mapping."""
    text = schema
    if isinstance(schema, Mapping):
        try:
            text = json.dumps(dict(schema), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ImpossibleSetting(f"json_schema is not JSON: {error}") from None
    if not isinstance(text, str):
        raise ImpossibleSetting(
            f"json_schema is {schema!r:.60}; it must be a schema as a mapping or as JSON text"
        )
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ImpossibleSetting(f"json_schema is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise ImpossibleSetting(
            f"json_schema is {text[:60]}; it must be an object, as in "
            '{"type": "object", "properties": {"name": {"type": "string"}}}'
        )
    return text


def compiled(kind: str, text: object) -> str:
    """A `json_schema`, `grammar` or `regex` in llguidance's own form; what is wrong with it is
    said as that kind's mistake."""
    if not isinstance(text, str) or not text:
        raise ImpossibleSetting(f"{kind} is {text!r:.60}; it must be a text that is not empty")
    if len(text) > _MAX_TEXT:
        raise ImpossibleSetting(f"{kind} has {len(text)} characters; at most {_MAX_TEXT} are read")
    if find_spec("llguidance") is None:
        raise MissingExtra(f"{kind}, a constraint on the text,", "engine")
    return _compiled(kind, text)


@lru_cache(maxsize=16)
def _compiled(kind: str, text: str) -> str:
    """Kept, since parameters of one request are made several times, and its form may take long."""
    try:
        form = _form(kind, text)
    except ValueError as error:  # half a surrogate pair, or numbers that JSON has not
        raise _mistake(kind, printable(str(error))) from None
    _check_compilable(kind, form)
    return form


def _check_compilable(kind: str, form: str) -> None:
    """The Rust code of llguidance panics on some expressions. Its validation lets the panic out,
    and Rust prints it on standard error; making a matcher catches it, so that comes first."""
    from llguidance import LLMatcher

    if LLMatcher(_byte_tokenizer(), form, log_level=0).get_error().startswith("panic:"):
        raise _mistake(kind, "llguidance fails on this combination: write it in another way")
    failed, messages = LLMatcher.validate_grammar_with_warnings(form)
    if failed:
        raise _mistake(kind, messages[0])


@cache
def _byte_tokenizer() -> LLTokenizer:
    from llguidance import LLTokenizer

    return LLTokenizer("byte")  # a token for every byte: there is no model yet


def _form(kind: str, text: str) -> str:
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(_closed(text), overrides=_JSON)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    try:
        return LLMatcher.grammar_from_lark(any_to_lark(text))
    except RecursionError:
        raise _mistake(kind, "it is nested too deeply") from None
    except Exception as error:  # its parser of GBNF raises Exception itself
        raise _mistake(kind, str(error)) from None


def _closed(schema: str) -> str:
    """Objects have no properties but the named ones, unless the schema says otherwise."""
    parsed = json.loads(schema)
    return json.dumps(parsed) if close_objects(parsed) else schema


def _mistake(kind: str, why: str) -> ImpossibleSetting:
    forms = {
        "json_schema": "see https://json-schema.org; not all of it can be demanded of a model",
        "grammar": "it is read as Lark (`start: ...`), or as GBNF (`root ::= ...`)",
        "regex": "it is read as Rust's regex does, without look-around and back references",
    }
    return ImpossibleSetting(f"{kind}: {' '.join(why.split())}; {forms[kind]}")


# The default for objects of a JSON schema: no properties besides those that it names. JSON Schema
# allows any further property unless a schema says otherwise, and a model that may write keys of
# its own may never end. Objects for which the caller did not decide are therefore closed
# (`additionalProperties: false`). What is closed must be the whole description of an object: each
# part of an `allOf` closed by itself would forbid the properties of the others. Such a
# composition is closed as a whole, with the properties of all of its parts. Where this cannot be
# decided the schema stays as it is.

Node = dict[str, Any]

# Each of them says something about properties that are not named.
_DECIDED = {
    *("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"),
    *("dependentRequired", "dependentSchemas", "dependencies", "if", "not", "enum", "const"),
    *("$dynamicRef", "$recursiveRef"),
}
_PARTS = ("allOf", "anyOf", "oneOf")  # schemas of the same value
_NAMED = ("properties", "patternProperties")  # name -> the schema of a value inside
_INSIDE = ("additionalProperties", "items", "additionalItems", "prefixItems", "contains")
_SHAPE = {"required", "minProperties", "maxProperties", *_NAMED, *_INSIDE}


class _Unknown(Exception):
    """A reference that is no path within the schema: what it joins cannot be decided."""


def close_objects(schema: Node) -> bool:
    """Close the objects of a parsed schema in place; whether anything was changed."""
    walk = _Walk(schema)
    try:
        walk.run()
    except _Unknown:
        return False
    closable = walk.closable()
    for node, names in closable:
        node["properties"] = dict.fromkeys(names, True) | node.get("properties", {})
        node["additionalProperties"] = False
    return bool(closable)


class _Walk:
    """Visits every schema that applies to some value, without recursion: schemas may be deep.

    A schema is visited alone where nothing else describes the same value, and joined where
    something does. One that is visited both ways, as a definition may be, stays open."""

    def __init__(self, root: Node) -> None:
        self._root = root
        self._left: list[tuple[Node, bool]] = []  # to visit, and whether alone
        self._seen: set[tuple[int, bool]] = set()
        self._joined: set[int] = set()  # by id()
        self._alone: list[tuple[Node, list[str]]] = []  # with the names its object may have

    def run(self) -> None:
        self._add(self._root, alone=True)
        while self._left:
            node, alone = self._left.pop()
            if alone:
                self._visit_alone(node)
            else:
                self._visit_joined(node)

    def closable(self) -> list[tuple[Node, list[str]]]:
        return [(node, names) for node, names in self._alone if id(node) not in self._joined]

    def _add(self, node: object, alone: bool) -> None:
        if not isinstance(node, dict) or (id(node), alone) in self._seen:
            return
        if "$id" in node and node is not self._root:  # references below are relative to it
            raise _Unknown
        self._seen.add((id(node), alone))
        self._left.append((node, alone))

    def _visit_alone(self, node: Node) -> None:
        parts = self._parts(node)
        kinds = [kind for kind in ("$ref", *_PARTS) if kind in node]
        conjunction = len(_listed(node.get("allOf"))) > 1
        if parts and len(kinds) == 1 and not conjunction and not _SHAPE & node.keys():
            for part in parts:  # alternatives, or another name of the same schema
                self._add(part, alone=True)
            return
        members = self._members(node)
        self._joined.update(id(member) for member in members[1:])
        self._note(node, members)
        self._descend(members)

    def _visit_joined(self, node: Node) -> None:
        self._joined.add(id(node))
        for part in (*self._parts(node), *(value for _, value in _values(node))):
            self._add(part, alone=False)

    def _note(self, node: Node, members: list[Node]) -> None:
        """Remember that `node` can be closed, if the members leave that open."""
        names = [name for member in members for name in _names(member)]
        names = list(dict.fromkeys(names))
        least = max((_number(member.get("minProperties")) for member in members), default=0)
        named = any("properties" in member for member in members)
        if any(not isinstance(member.get("properties", {}), dict) for member in members):
            return  # a mistake, which the grammar's compiler reports
        if named and least <= len(names) and not any(_DECIDED & m.keys() for m in members):
            self._alone.append((node, names))

    def _descend(self, members: list[Node]) -> None:
        """Values inside; two members, or a name and a pattern, may describe the same one."""
        found = [pair for member in members for pair in _values(member)]
        places = Counter(place for place, _ in found)
        kinds = Counter(kind for kind, _ in places)
        patterns = kinds["patternProperties"] and kinds["properties"] + kinds["patternProperties"]
        for place, value in found:
            shared = len(members) > 1 and places[place] > 1
            matched = patterns > 1 and place[0] in _NAMED
            self._add(value, alone=not (shared or matched or place[0] == "contains"))

    def _members(self, node: Node) -> list[Node]:
        """`node` and all schemas that describe the same value together with it."""
        members = {id(node): node}
        left = [node]
        while left:
            parts = [part for part in self._parts(left.pop()) if id(part) not in members]
            members |= {id(part): part for part in parts}
            left += parts
        return list(members.values())

    def _parts(self, node: Node) -> list[Node]:
        parts = [part for kind in _PARTS for part in _listed(node.get(kind))]
        if "$ref" in node:
            parts.append(self._target(node["$ref"]))
        return [part for part in parts if isinstance(part, dict)]

    def _target(self, reference: object) -> object:
        path = reference.partition("#") if isinstance(reference, str) else ("?", "", "")
        if path[0] or (path[2] and not path[2].startswith("/")):
            raise _Unknown
        found: Any = self._root
        for word in unquote(path[2]).split("/")[1:]:
            key = word.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(key)] if isinstance(found, list) else found[key]
            except (KeyError, IndexError, ValueError, TypeError):
                raise _Unknown from None
        return found


def _values(node: Node) -> Iterator[tuple[tuple[str, str], Any]]:
    """Schemas of what is inside an object or an array, each with its place."""
    for kind in _NAMED:
        if isinstance(node.get(kind), Mapping):
            yield from (((kind, name), value) for name, value in node[kind].items())
    for kind in _INSIDE:
        yield from (((kind, ""), value) for value in _listed(node.get(kind)))


def _names(node: Node) -> list[str]:
    """What an object may or must have; required names need not be among the properties."""
    properties = node.get("properties")
    named = list(properties) if isinstance(properties, Mapping) else []
    return named + [name for name in _listed(node.get("required")) if isinstance(name, str)]


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _number(value: object) -> float:
    return value if isinstance(value, int | float) else 0
