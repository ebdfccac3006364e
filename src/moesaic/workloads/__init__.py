"""Routing traces: one format, recording, statistics, and synthetic routing calibrated on real.

What others need is listed here and loaded when it is first asked for, so that naming the
package costs nothing."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moesaic.workloads.block import RoutingBlock
    from moesaic.workloads.bundled_traces import bundled_trace
    from moesaic.workloads.header import TraceHeader
    from moesaic.workloads.reader import TraceReader
    from moesaic.workloads.recorder import Recorder
    from moesaic.workloads.source import MemoryTrace, TraceSource, open_trace
    from moesaic.workloads.stats.summary import describe
    from moesaic.workloads.steps import (
        StepRouting,
        decode_steps,
        popularity,
        prefill_steps,
    )
    from moesaic.workloads.synthetic.calibration import (
        Calibration,
        default_calibration,
        load_calibration,
    )
    from moesaic.workloads.synthetic.fit import fit
    from moesaic.workloads.synthetic.generate import TraceShape, synthesize
    from moesaic.workloads.writer import TraceWriter, write_trace

_MODULES = {
    "RoutingBlock": "block",
    "bundled_trace": "bundled_traces",
    "TraceHeader": "header",
    "TraceReader": "reader",
    "Recorder": "recorder",
    "MemoryTrace": "source",
    "TraceSource": "source",
    "open_trace": "source",
    "StepRouting": "steps",
    "decode_steps": "steps",
    "popularity": "steps",
    "prefill_steps": "steps",
    "Calibration": "synthetic.calibration",
    "default_calibration": "synthetic.calibration",
    "load_calibration": "synthetic.calibration",
    "TraceShape": "synthetic.generate",
    "synthesize": "synthetic.generate",
    "fit": "synthetic.fit",
    "describe": "stats.summary",
    "TraceWriter": "writer",
    "write_trace": "writer",
}

__all__ = [  # noqa: RUF022 (in the order of _MODULES)
    "RoutingBlock",
    "bundled_trace",
    "TraceHeader",
    "TraceReader",
    "Recorder",
    "MemoryTrace",
    "TraceSource",
    "open_trace",
    "StepRouting",
    "decode_steps",
    "popularity",
    "prefill_steps",
    "Calibration",
    "default_calibration",
    "load_calibration",
    "TraceShape",
    "synthesize",
    "fit",
    "describe",
    "TraceWriter",
    "write_trace",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
