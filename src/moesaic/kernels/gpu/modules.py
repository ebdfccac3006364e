"""Modules compiled for a shape and loaded on the current device: once, for all callers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from moesaic.kernels.gpu.driver import Module, architecture
from moesaic.kernels.gpu.nvrtc import compile_source


def load_module(name: str, defines: Mapping[str, int | float]) -> Module:
    """`source/NAME.cu` with macros set."""
    return _loaded(name, tuple(sorted(defines.items())), architecture())


@cache
def _loaded(name: str, defines: tuple[tuple[str, int | float], ...], target: str) -> Module:
    return Module(compile_source(name, dict(defines), target))
