"""What every expert's load will be, as a moving average of what it was (TriMoE eq. 8).

Accuracy is measured in two ways, since the paper's 78 % is not defined. An expert's class is hot,
warm or cold by its rank among the layer's loads: the first `hot` are hot, the next `warm` warm.
`class_accuracy`: of the experts predicted hot or warm, the share whose class is the predicted one
in the next step (most experts are cold, and counting those would flatter). `decision_accuracy`: of
the predictions that contradict the present layout and so would cause a migration, the share that
the next step confirms."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting

ALPHA = 0.3
HOT, WARM, COLD = 0, 1, 2

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


def classes(loads: NDArray[np.number], hot: int, warm: int) -> NDArray[np.int64]:
    """Of one layer's experts, by rank; the lower number first among equals."""
    found = np.full(len(loads), COLD, dtype=np.int64)
    order = np.argsort(-loads, kind="stable")
    found[order[:hot]] = HOT
    found[order[hot : hot + warm]] = WARM
    return found


def class_accuracy(
    predicted: NDArray[np.number], actual: NDArray[np.number], hot: int, warm: int
) -> float:
    said, was = classes(predicted, hot, warm), classes(actual, hot, warm)
    asked = said != COLD
    return float((said == was)[asked].mean()) if asked.any() else 1.0


def decision_accuracy(
    predicted: NDArray[np.number],
    actual: NDArray[np.number],
    layout: NDArray[np.integer],
    hot: int,
    warm: int,
) -> tuple[int, int]:
    """`layout[expert]` is the class whose place an expert has: decisions, and right ones."""
    said, was = classes(predicted, hot, warm), classes(actual, hot, warm)
    changed = said != layout
    return int(changed.sum()), int((said == was)[changed].sum())
