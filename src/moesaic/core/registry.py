"""Names to implementations, without importing the implementations until they are asked for.

A registry knows one kind of thing (schedules, caches, ...). Registering is one statement, in the
package's `__init__`, in a plugin (`core/plugins.py`) or in a user's script; the command line reads
its choices, their descriptions and their parameters from here."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Generic, TypeVar

from moesaic.core.errors import BadPolicy, UnknownName
from moesaic.core.parameter import Parameter
from moesaic.core.plugins import load_installed
from moesaic.core.registering import registering_now

T = TypeVar("T")
OURS = "moesaic"  # the origin of what comes with the package


@dataclass(frozen=True, slots=True)
class Entry:
    """An implementation, or where it lives (`module:attribute`), one line about it, and the
    parameters that its constructor takes as keywords. `plugin` and `origin` as in `Registering`."""

    target: str | type[Any]
    summary: str
    parameters: tuple[Parameter, ...] = ()
    plugin: str | None = None
    origin: str = OURS


class Registry(Generic[T]):
    """`shared` are parameters that every entry has in addition to its own. They concern the
    composition of a brain, not the implementation, whose constructor does not get them.

    `contract` (`module:attribute`) is the class that implementations from outside the package must
    be subclasses of, `arguments` what their constructors are called with before the parameters."""

    def __init__(
        self,
        kind: str,
        shared: tuple[Parameter, ...] = (),
        contract: str | None = None,
        arguments: tuple[str, ...] = (),
    ) -> None:
        self.kind, self.shared = kind, shared
        self._contract, self._arguments = contract, arguments
        self._entries: dict[str, Entry] = {}
        self._checked: set[type[T]] = set()

    def register(
        self,
        name: str,
        target: str | type[T],
        summary: str,
        parameters: tuple[Parameter, ...] = (),
    ) -> None:
        """`target` is the implementation's class or, so that it is imported only when it is used,
        `module:attribute`."""
        if name in self._entries:
            raise BadPolicy(
                f"{self.kind} {name!r} is registered already, by {self._entries[name].origin}: "
                "choose another name"
            )
        if not name or not set(name).isdisjoint(" ,:;=|"):
            raise BadPolicy(f"{self.kind} {name!r}: a name has no spaces and none of , : ; = |")
        every = [parameter.name for parameter in (*parameters, *self.shared)]
        if len(set(every)) != len(every):
            raise BadPolicy(f"{self.kind} {name!r} has two parameters of the same name: {every}")
        by = registering_now()
        if by is None:
            self._entries[name] = Entry(target, summary, parameters, origin=_module(target))
            return
        self._entries[name] = Entry(target, summary, parameters, by.plugin, by.origin)
        by.undo.append(lambda: self._entries.pop(name, None))
        by.checks.append(lambda: self.load(name))

    def entry(self, name: str) -> Entry:
        """Installed plugins are imported when a name is not known without them."""
        if name not in self._entries:
            problems = load_installed()
            if name not in self._entries:
                raise UnknownName(self.kind, name, self._entries, problems)
        return self._entries[name]

    def load(self, name: str) -> type[T]:
        """The implementation's class; imports its module."""
        entry = self.entry(name)
        target = entry.target
        found: type[T] = _imported(target) if isinstance(target, str) else target
        if entry.origin != OURS and self._contract is not None and found not in self._checked:
            own = {parameter.name: parameter.default for parameter in entry.parameters}
            contract = _imported(self._contract)
            check_contract(f"{self.kind} {name!r}", found, contract, self._arguments, own)
            self._checked.add(found)
        return found

    def create(self, name: str, *args: Any, **settings: Any) -> T:
        return self.load(name)(*args, **settings)

    def summary(self, name: str) -> str:
        return self._entries[name].summary

    def origin(self, name: str) -> str:
        """The package itself, a plugin, or the module that has registered it."""
        return self._entries[name].origin

    def parameters(self, name: str) -> tuple[Parameter, ...]:
        """Its own, then those that all of its kind have."""
        return (*self.entry(name).parameters, *self.shared)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def _imported(target: str) -> Any:
    module, _, attribute = target.partition(":")
    found = import_module(module)
    if not hasattr(found, attribute):
        raise BadPolicy(f"module {module!r} has no {attribute!r}, which {target!r} names")
    return getattr(found, attribute)


def _module(target: str | type[Any]) -> str:
    """The module in which a target is registered without a plugin: the package, or a script."""
    module = target.partition(":")[0] if isinstance(target, str) else target.__module__
    return OURS if module.partition(".")[0] == OURS else module


# Whether a class from outside the package can be used as a policy: a subclass of its kind's base
# class, with nothing abstract left, whose constructor and methods take what they are called with.


def check_contract(
    owner: str,
    found: Any,
    contract: type[Any],
    arguments: tuple[str, ...],
    parameters: Mapping[str, object],
) -> None:
    """`owner` is the policy in words. `arguments` are given to the constructor by position,
    `parameters` as keywords."""
    name = getattr(found, "__name__", str(found))
    if not inspect.isclass(found) or not issubclass(found, contract):
        base = f"{contract.__module__}.{contract.__qualname__}"
        raise BadPolicy(f"{owner}: {name} must be a subclass of {base}")
    missing = sorted(getattr(found, "__abstractmethods__", ()))
    if missing:
        raise BadPolicy(f"{owner}: {name} must define {', '.join(missing)}")
    _check_methods(owner, found, contract)
    try:
        inspect.signature(found).bind(*arguments, **parameters)
    except TypeError as error:
        called = ", ".join((*arguments, *(f"{key}=..." for key in parameters)))
        raise BadPolicy(
            f"{owner}: {name} is called with ({called}), but takes {inspect.signature(found)}: "
            f"{error}"
        ) from None


def _check_methods(owner: str, found: type[Any], contract: type[Any]) -> None:
    """Public methods of the base class that are overridden can be called as the base's are."""
    for name, base in vars(contract).items():
        own = getattr(found, name, None)
        if name.startswith("_") or own is base or not inspect.isfunction(base):
            continue
        if not inspect.isfunction(own):
            raise BadPolicy(f"{owner}: {found.__name__}.{name} must be a method")
        taken = list(inspect.signature(base).parameters)
        try:
            inspect.signature(own).bind(*taken)
        except TypeError:
            raise BadPolicy(
                f"{owner}: {found.__name__}.{name} must take ({', '.join(taken)}), takes "
                f"{inspect.signature(own)}"
            ) from None
