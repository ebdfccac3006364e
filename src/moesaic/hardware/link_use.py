"""How GPU and CPU use the link between them, where that was measured: what a copy's bytes and
latency alone do not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from moesaic.hardware.numbers import Checked, Count, NotNegative, Rates, Rule

AtLeastOne = Annotated[float, Rule("a factor of 1 or more", lambda v: v >= 1)]


@dataclass(frozen=True, slots=True)
class LinkUseSpec(Checked):
    """Everything is 0, or a factor of 1, where it was not measured. *Cached* copies are those of
    experts that the CPU has just computed: its caches answer the link instead of memory."""

    demand_us: NotNegative = 0.0  # extra for a layer's first expert on demand
    submitted_copies: Count = 1  # in the background at once: the next layer does not drop them
    busy_handover_us: NotNegative = 0.0  # handing a layer over between GPU and CPU, beside copies
    cached_handover_us: NotNegative = 0.0  # the same, beside cached copies
    cached_factor: AtLeastOne = 1.0  # so many times as long a cached copy takes
    # so many times as long the CPU takes beside one, by weight precision
    cached_cpu_factor: Rates = field(default_factory=dict, hash=False)


USUAL_USE = LinkUseSpec()
