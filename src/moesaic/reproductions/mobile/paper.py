"""What the MoBiLE paper states. Accuracies are of GSM8K and HumanEval on the original models, which
nothing here runs: its fallback ratios are taken as they are."""

from __future__ import annotations

from typing import NamedTuple

MACHINE = "rtx4080-i5-12400"
OLMOE, QWEN = "olmoe-1b-7b", "qwen1.5-moe-a2.7b"
MODELS = {QWEN: "Qwen1.5-MoE-A2.7B", OLMOE: "OLMoE"}
# The paper's GPU memory is "only slightly larger than the activated parameters": as many experts of
# each layer as a token uses.
CACHE_RATIO = {OLMOE: 8 / 64, QWEN: 4 / 60}


class Stated(NamedTuple):
    """A speedup over the full model at a fallback ratio; None: the paper does not state it."""

    id: str
    claim: str
    model: str
    k: int
    fallback_ratio: float
    speedup: float | None


TABLE_2 = (
    Stated("table2/qwen/little", "Qwen MoE, 2 of 4 experts", QWEN, 2, 0.0, 1.82),
    Stated("table2/qwen/gsm8k", "Qwen MoE, MoBiLE on GSM8K", QWEN, 2, 0.11, 1.72),
    Stated("table2/qwen/humaneval", "Qwen MoE, MoBiLE on HumanEval", QWEN, 2, 0.11, 1.72),
    Stated("table2/olmoe/little", "OLMoE, 4 of 8 experts", OLMOE, 4, 0.0, 1.85),
    Stated("table2/olmoe/gsm8k", "OLMoE, MoBiLE on GSM8K", OLMOE, 4, 0.21, 1.57),
    Stated("table2/olmoe/humaneval", "OLMoE, MoBiLE on HumanEval", OLMOE, 4, 0.12, 1.63),
)
TABLE_3 = (
    Stated("table3/gamma=0.0", "OLMoE, threshold 0", OLMOE, 4, 0.0, 1.85),
    Stated("table3/gamma=0.5", "OLMoE, threshold 0.5", OLMOE, 4, 0.10, 1.65),
    Stated("table3/gamma=0.7", "OLMoE, threshold 0.7", OLMOE, 4, 0.21, 1.57),
    Stated("table3/gamma=0.8", "OLMoE, threshold 0.8", OLMOE, 4, 0.27, 1.54),
)
TABLE_4 = (
    Stated("table4/k=2", "OLMoE, little model of 2 experts", OLMOE, 2, 0.29, None),
    Stated("table4/k=4", "OLMoE, little model of 4 experts", OLMOE, 4, 0.21, None),
    Stated("table4/k=6", "OLMoE, little model of 6 experts", OLMOE, 6, 0.21, None),
)
GSM8K_RATIO = {QWEN: 0.11, OLMOE: 0.21}
OVER_PRE_GATED, OVER_ADAPMOE, WITH_PRE_GATING = 1.28, 1.21, 1.92  # figure 5, averages
GSM8K_FULL = 0.515  # OLMoE, all experts


class StatedAccuracy(NamedTuple):
    """The accuracy of OLMoE on GSM8K, with the fallback ratio."""

    accuracy: float
    fallback_ratio: float | None


# By the part of a row's id that says which setting it is; k is given as a share of the paper's 8.
ACCURACY = {
    "table2/full": StatedAccuracy(0.515, None),
    "table2/little": StatedAccuracy(0.371, 0.0),
    "table2/mobile": StatedAccuracy(0.448, 0.21),
    "table3/gamma=0": StatedAccuracy(0.371, 0.0),
    "table3/gamma=0.5": StatedAccuracy(0.422, 0.10),
    "table3/gamma=0.7": StatedAccuracy(0.448, 0.21),
    "table3/gamma=0.8": StatedAccuracy(0.473, 0.27),
    "table4/k=1/little": StatedAccuracy(0.040, 0.0),
    "table4/k=1": StatedAccuracy(0.180, 0.29),
    "table4/k=2/little": StatedAccuracy(0.371, 0.0),
    "table4/k=2": StatedAccuracy(0.448, 0.21),
    "table4/k=3/little": StatedAccuracy(0.491, 0.0),
    "table4/k=3": StatedAccuracy(0.506, 0.21),
}
