"""The default for objects of a JSON schema: no properties besides those that it names.

JSON Schema allows any further property unless a schema says otherwise, and a model that may write
keys of its own may never end. Objects for which the caller did not decide are therefore closed
(`additionalProperties: false`).

What is closed must be the whole description of an object: each part of an `allOf` closed by itself
would forbid the properties of the others. Such a composition is closed as a whole, with the
properties of all of its parts. Where this cannot be decided the schema stays as it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

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
