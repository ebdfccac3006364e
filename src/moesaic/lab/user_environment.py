"""Environments for what is measured beside this engine: as its user would run it.

The package lets OpenMP's threads sleep at barriers (`moesaic/__init__.py`) and marks that the
setting is its own. Inherited, it halves the speed at which llama.cpp decodes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

_SETTING, _MARK = "OMP_WAIT_POLICY", "MOESAIC_WAIT_POLICY"
_USERS = "user"  # value of the mark: the package sets nothing where it is loaded


def of_program() -> dict[str, str]:
    """The environment for another program."""
    found = dict(os.environ)
    if found.pop(_MARK, None) is not None:
        found.pop(_SETTING, None)
    return found


def of_stock_process() -> dict[str, str]:
    """The environment for a process that loads this package and measures something else."""
    return {**of_program(), _MARK: _USERS}


@contextmanager
def inherited(environment: Mapping[str, str]) -> Iterator[None]:
    """Processes that are begun meanwhile have it."""
    before = dict(os.environ)
    _replace(environment)
    try:
        yield
    finally:
        _replace(before)


def _replace(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    os.environ.update(environment)
