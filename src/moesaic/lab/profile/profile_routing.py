"""The routing that a machine is measured under: synthetic, as skewed and as repetitive as a model's
own. How fast the CPU's experts are depends on it: what the last tokens used is in a cache."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from moesaic.model_info.model_spec import ModelSpec
from moesaic.workloads.source import MemoryTrace
from moesaic.workloads.steps import StepRouting, decode_steps, popularity
from moesaic.workloads.synthetic.calibration import default_calibration
from moesaic.workloads.synthetic.generate import TraceShape, synthesize

_PLACING = 256  # tokens that decide which experts are in GPU memory
_TOKENS = 512  # behind them; then they come again


class ProfileRouting:
    def __init__(self, spec: ModelSpec) -> None:
        calibration = default_calibration(spec.name, spec.num_experts)
        made = synthesize(
            calibration, TraceShape.of(spec), _PLACING + _TOKENS, seed=0, phase="decode"
        )
        self._trace = MemoryTrace(made.header, list(made.blocks()))  # made while it is read: once

    def counts(self) -> NDArray[np.int64]:
        """Uses by layer and expert, for the placement."""
        return popularity(self._trace, _PLACING)

    def steps(self, batch: int, count: int) -> Iterator[StepRouting]:
        return decode_steps(self._trace, batch, count, skip_tokens=_PLACING, wrap=True)
