"""One policy, chosen by name with its parameters: `mrs:alpha=0.7,pool=global`.

In Python the same is `policy("mrs", alpha=0.7, pool="global")`. Choices are checked against the
registry of their kind, which needs no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.parameter import Parameter, Value
from moesaic.core.plugins import load_plugin
from moesaic.core.registry import Registry

T = TypeVar("T")


class AskedPolicy(NamedTuple):
    """A policy asked for in Python, before its kind is known."""

    name: str
    parameters: Mapping[str, object]


def policy(name: str, **parameters: object) -> AskedPolicy:
    """A policy with parameters as keywords, for `PolicySet.of` and whatever takes policies."""
    return AskedPolicy(name, parameters)


@dataclass(frozen=True, slots=True)
class PolicyChoice:
    """A registered policy and the value of every parameter it has. `str(choice)` leaves out the
    defaults and reads back as the same choice. In another process it brings its `plugin` along,
    so that a policy from outside the package is registered there, too."""

    name: str
    values: tuple[tuple[str, Value], ...]  # in the order of registration
    text: str  # canonical
    plugin: str | None = field(default=None, compare=False)  # as in `core.registry.Entry`

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self.name, self.values, self.text, self.plugin)

    @classmethod
    def parse(cls, registry: Registry[Any], text: str) -> PolicyChoice:
        """Parse `name` or `name:parameter=value,...`."""
        return cls.of(registry, *_split(registry, text))

    @classmethod
    def of(
        cls, registry: Registry[Any], name: str, parameters: Mapping[str, object]
    ) -> PolicyChoice:
        known, owner = registry.parameters(name), f"{registry.kind} {name!r}"
        _check_names(owner, name, known, parameters)
        values = {
            p.name: p.read(owner, parameters[p.name]) if p.name in parameters else p.default
            for p in known
        }
        changed = [
            f"{p.name}={p.write(values[p.name])}" for p in known if values[p.name] != p.default
        ]
        text = f"{name}:{','.join(changed)}" if changed else name
        return cls(name, tuple(values.items()), text, registry.entry(name).plugin)

    @property
    def parameters(self) -> dict[str, Value]:
        return dict(self.values)

    def create(self, registry: Registry[T], *args: Any) -> T:
        """The policy itself: the class's own parameters go to its constructor."""
        values = self.parameters
        own = {p.name: values[p.name] for p in registry.entry(self.name).parameters}
        return registry.create(self.name, *args, **own)

    def __str__(self) -> str:
        return self.text


def _restored(
    name: str, values: tuple[tuple[str, Value], ...], text: str, plugin: str | None
) -> PolicyChoice:
    if plugin is not None:
        load_plugin(plugin)
    return PolicyChoice(name, values, text, plugin)


Choosable = str | AskedPolicy | PolicyChoice


def choose(registry: Registry[Any], asked: Choosable) -> PolicyChoice:
    """What was asked for, however it was said."""
    if isinstance(asked, PolicyChoice):
        return PolicyChoice.of(registry, asked.name, asked.parameters)
    if isinstance(asked, AskedPolicy):
        name, parameters = _split(registry, asked.name)
        return PolicyChoice.of(registry, name, {**parameters, **asked.parameters})
    if not isinstance(asked, str):
        raise ImpossibleSetting(
            f"{registry.kind} is {asked!r}; it must be the name of one: {', '.join(registry)}"
        )
    return PolicyChoice.parse(registry, asked)


def _split(registry: Registry[Any], text: str) -> tuple[str, dict[str, object]]:
    name, colon, rest = text.partition(":")
    name = name.strip()
    known = registry.parameters(name)  # an unknown policy comes first
    found: dict[str, object] = {}
    for word in rest.split(",") if colon else ():
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise ImpossibleSetting(
                f"{registry.kind} {text!r}: {word.strip()!r} is not parameter=value"
                f"{_example(name, known)}"
            )
        if key in found:
            raise ImpossibleSetting(f"{registry.kind} {text!r}: {key} is given twice")
        found[key] = value
    return name, found


def _example(name: str, known: tuple[Parameter, ...]) -> str:
    if not known:
        return f", and {name} has no parameters"
    values = ((p, p.choices[-1] if p.choices else p.default) for p in known)
    parameter, value = next((p, v) for p, v in values if v is not None)
    return f"; write it as in {name}:{parameter.name}={parameter.write(value)}"


def _check_names(
    owner: str, name: str, known: tuple[Parameter, ...], given: Mapping[str, object]
) -> None:
    names = [parameter.name for parameter in known]
    for key in given:
        if not names:
            raise ImpossibleSetting(f"{owner} has no parameters: leave out {key}")
        if key not in names:
            raise UnknownName(f"{name} parameter", key, names)
