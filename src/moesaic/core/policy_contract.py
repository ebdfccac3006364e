"""Whether a class from outside the package can be used as a policy: a subclass of its kind's base
class, with nothing abstract left, whose constructor and methods take what they are called with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from moesaic.core.errors import BadPolicy


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
