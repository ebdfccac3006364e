"""Layouts: where in main memory experts lie, and which of them move in the background.

For machines whose main memory is DIMMs that compute. What is in GPU memory at first is the fill's
business; an adaptive layout may exchange experts there as well."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.parameter import Parameter
from moesaic.core.registry import Registry

if TYPE_CHECKING:  # names, summaries and parameters must cost no numpy: `--help` reads them
    from moesaic.policies.layout.base import Layout

_HERE = "moesaic.policies.layout"
layouts: Registry[Layout] = Registry(
    "layout", contract=f"{_HERE}.base:Layout", arguments=("layers", "experts")
)
STRIPED = "striped"  # the default: what a machine does by itself

_DEVICES = Parameter(
    "devices",
    str,
    "all",
    "who is to compute experts, and so what the layout is made for",
    choices=("all", "gpu", "gpu-cpu", "gpu-ndp"),
)
_COPIES = Parameter(
    "copies", int, 0, "most used localized experts per layer to keep striped as well", minimum=0
)
_SPLITS = Parameter(
    "splits",
    int,
    0,
    "most used localized experts per layer to split over groups of DIMMs (dimms.split)",
    minimum=0,
)

layouts.register(
    STRIPED, f"{_HERE}.base:Striped", "everything striped over all DIMMs, nothing moves"
)
layouts.register(
    "offline",
    f"{_HERE}.offline:Offline",
    "warm experts striped, cold ones localized and balanced by a profile; nothing moves",
    (_DEVICES, _COPIES, _SPLITS),
)
layouts.register(
    "joint",
    f"{_HERE}.offline:Joint",
    "the offline layout improved together with the schedule; nothing moves",
    (_DEVICES, _COPIES, _SPLITS),
)
layouts.register(
    "localized",
    f"{_HERE}.offline:Localized",
    "every expert in one DIMM, balanced by a profile; nothing moves",
    (_DEVICES, _COPIES, _SPLITS),
)
layouts.register(
    "trimoe",
    f"{_HERE}.trimoe:TriMoeLayout",
    "TriMoE: an offline layout, then prefetching, relayout and rebalancing by predicted load",
    (
        Parameter(
            "alpha", float, 0.3, "weight of the newest loads in the average", above=0, maximum=1
        ),
        Parameter("prefetch", bool, True, "exchange hot experts into GPU memory"),
        Parameter("relayout", bool, True, "change between striped and localized"),
        Parameter("rebalance", bool, True, "move cold experts from busy to idle DIMMs"),
        Parameter(
            "offline",
            str,
            "cut",
            "how the initial layout is made",
            choices=("cut", "joint", "localized"),
        ),
        Parameter(
            "rule",
            str,
            "classes",
            "what moves: what does not suit its class (the paper's), or lowers the makespan",
            choices=("classes", "smooth-makespan"),
        ),
        Parameter(
            "warm",
            float,
            0.0,
            "classes: share of a layer's experts that are warm; 0: as many as striped at first",
            minimum=0,
            maximum=1,
        ),
        Parameter(
            "margin",
            float,
            0.0,
            "classes: part of a class's limit by which a predicted load must pass it",
            minimum=0,
            maximum=1,
        ),
        Parameter(
            "skew",
            float,
            1.5,
            "classes: load of the busiest DIMM over the mean from which cold experts leave it",
            minimum=1,
        ),
        _DEVICES,
        _COPIES,
        _SPLITS,
    ),
)
