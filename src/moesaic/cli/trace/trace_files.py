"""Traces as users name them: a file, or the word for the one that comes with the package."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moesaic.workloads.source import TraceSource


def open_named(file: str) -> TraceSource:
    from moesaic.workloads.bundled_traces import BUNDLED, DEFAULT_MODEL, bundled_trace
    from moesaic.workloads.source import open_trace

    found = bundled_trace(DEFAULT_MODEL) if file == BUNDLED else None
    return open_trace(file if found is None else found)
