"""Small three-device layers with round costs, for tests."""

from __future__ import annotations

import numpy as np

from moesaic.policies.tri.costs import TriCosts, tri_costs
from moesaic.policies.tri.layer import Layer, Options, layer_of, options_of


def round_costs(**changes: object) -> TriCosts:
    """Per token: GPU 1 (and 10 in any case), CPU 5, NDP 40. Weights: PCIe 100, DRAM 20 striped and
    80 localized, 30 inside a DIMM. Four DIMMs on two channels; host bandwidth not shared."""
    tokens = np.arange(65.0)
    compute = np.stack([10 + tokens, 5 * tokens, 40 * tokens])
    settings = {
        "pcie_ns": 100, "striped_ns": 20, "localized_ns": 80, "internal_ns": 30,
        "dimms": 4, "channels": 2, "shared": False,
    }  # fmt: skip
    return tri_costs(compute, **{**settings, **changes})  # type: ignore[arg-type]


def drawn_layer(rng: np.random.Generator, costs: TriCosts, n: int) -> Layer:
    """Anything: resident or not, striped, localized or both, some split."""
    dimm = np.where(rng.random(n) < 0.6, rng.integers(0, costs.dimms, n), -1)
    span = np.where((dimm >= 0) & (rng.random(n) < 0.2), 2, 1)
    loads = np.minimum(rng.geometric(0.15, n), costs.tokens)
    return layer_of(
        costs, loads, resident=rng.random(n) < 0.1, dimm=dimm, striped=rng.random(n) < 0.1,
        span=span,
    )  # fmt: skip


def drawn_options(seed: int, n: int = 24, **changes: object) -> Options:
    rng = np.random.default_rng(seed)
    costs = round_costs(**changes)
    return options_of(costs, drawn_layer(rng, costs, n))
