"""What a description's numbers of a processor mean: the time for so many bytes and operations.

Whatever derives times from a description begins here: the simulator's physics, and a belief that
is stated instead of measured. How these times add up to an expert or a layer is theirs to say."""

from __future__ import annotations

import numpy as np

from moesaic.core.units import GB, NS_PER_S, ns_from_us
from moesaic.hardware.processors import Processor


def roofline_ns(
    processor: Processor, size: int, flops: float, dtype: str, gb_s: float | None = None
) -> int:
    """The longer of reading the weights, at the processor's usual rate or at `gb_s`, and
    multiplying with them."""
    reading = size / ((gb_s or processor.effective_bandwidth_gb_s) * GB)
    multiplying = flops / (processor.effective_tflops(dtype) * 1e12)
    return round(max(reading, multiplying) * NS_PER_S)


def measured_factor(processor: Processor, dtype: str, tokens: int) -> float:
    """What an expert of so many tokens takes over its roofline; beyond the counts that were
    measured, as at the nearest."""
    known = processor.factors(dtype)
    if not known:
        return 1.0
    counts = sorted(known)
    return float(np.interp(tokens, counts, [known[count] for count in counts]))


def fixed_ns(processor: Processor, cost: str) -> int:
    """A fixed cost that only some kinds of processor have."""
    return ns_from_us(getattr(processor, cost, 0.0))
