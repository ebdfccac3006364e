"""What every expert's load will be, as a moving average of what it was (TriMoE eq. 8)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting

ALPHA = 0.3

Singles = NDArray[np.float32]


class LoadPredictor:
    """Four bytes per expert: 37.8 kB for DeepSeek-V2's 59 layers of 160 experts."""

    def __init__(self, layers: int, experts: int, alpha: float = ALPHA) -> None:
        if not 0 < alpha <= 1:
            raise ImpossibleSetting(f"alpha is {alpha}; it must be above 0 and at most 1")
        self.loads: Singles = np.zeros((layers, experts), dtype=np.float32)
        self._alpha = np.float32(alpha)
        self._seen = np.zeros(layers, dtype=np.bool_)

    @property
    def num_bytes(self) -> int:
        return self.loads.nbytes

    def start(self, loads: NDArray[np.floating]) -> None:
        """Begin with what a profile says, [layers, experts]."""
        self.loads[:] = loads
        self._seen[:] = True

    def observe(self, layer: int, loads: NDArray[np.integer]) -> None:
        """Equation 8; the first step of all is taken as it is."""
        now, row = loads.astype(np.float32), self.loads[layer]
        if not self._seen[layer]:
            row[:], self._seen[layer] = now, True
            return
        row *= 1 - self._alpha
        row += self._alpha * now
