"""The exact makespan of a layer by a mixed-integer program, and lower bounds by linear ones, for a
given layout and for the best layout that could have been. Bounds, not for speed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import MissingExtra
from moesaic.policies.tri.costs import ON_CPU, ON_GPU, ON_NDP, OPTIONS, Floats, TriCosts
from moesaic.policies.tri.layer import (
    ALL_DEVICES,
    FIRST_DIMM,
    Bools,
    Ints,
    Options,
    layer_of,
    options_of,
)

GAP = 1e-3
SECONDS = 20.0


def optimal(options: Options, gap: float = GAP, seconds: float = SECONDS) -> tuple[Ints, float]:
    """The best choice found and a proven lower bound on every choice."""
    n = len(options.time)
    if n == 0:
        return np.zeros(0, dtype=np.int64), float(options.base.max())
    found = _solve(options, integral=True, gap=gap, seconds=seconds)
    if found.x is None:
        return np.argmin(options.time, axis=1), linear_bound(options)
    shares = np.zeros(n * OPTIONS)
    shares[_possible(options)] = found.x[:-1]
    scale = _scale(options)
    return shares.reshape(n, OPTIONS).argmax(axis=1), float(found.mip_dual_bound) * scale


def linear_bound(options: Options) -> float:
    """Experts may be divided between options."""
    if len(options.time) == 0:
        return float(options.base.max())
    return float(_solve(options, integral=False).fun) * _scale(options)


def free_layout_bound(
    costs: TriCosts,
    loads: Ints,
    slots: int,
    devices: Bools = ALL_DEVICES,
    base: Floats | None = None,
) -> float:
    """No layout of these experts, with `slots` of them in GPU memory, has a smaller makespan: all
    choose freely between GPU memory, a striped read and near-data computation, which the DIMMs
    share evenly."""
    striped = options_of(costs, layer_of(costs, loads, base=base), devices)
    near = np.zeros(len(loads), dtype=np.int64)
    local = options_of(costs, layer_of(costs, loads, dimm=near, base=base), devices)
    held = np.ones(len(loads), dtype=np.bool_)
    hits = options_of(costs, layer_of(costs, loads, resident=held, base=base), devices)
    use = np.stack(
        [striped.use[:, ON_GPU], striped.use[:, ON_CPU], _even(local.use[:, ON_NDP], costs.dimms),
         hits.use[:, ON_GPU]], axis=1,
    )  # fmt: skip
    possible = np.isfinite(
        np.stack([striped.time[:, ON_GPU], striped.time[:, ON_CPU], local.time[:, ON_NDP],
                  hits.time[:, ON_GPU]], axis=1)
    )  # fmt: skip
    return _free_program(use, possible, slots, striped.base)


def _even(use: Floats, dimms: int) -> Floats:
    rows = slice(FIRST_DIMM, FIRST_DIMM + dimms)
    spread = use.copy()
    spread[:, rows] = use[:, rows].sum(axis=1, keepdims=True) / dimms
    return spread


def _free_program(use: Floats, possible: NDArray[np.bool_], slots: int, base: Floats) -> float:
    optimize = _optimize()
    n, kinds, resources = use.shape
    scale = max(float(use.max()), 1.0)
    columns = use.reshape(n * kinds, resources) / scale
    one_each = np.kron(np.eye(n), np.ones(kinds))
    in_slots = np.tile(np.arange(kinds) == kinds - 1, n).astype(float)
    found = optimize.linprog(
        np.append(np.zeros(n * kinds), 1.0),
        A_ub=np.vstack([np.hstack([columns.T, -np.ones((resources, 1))]), np.append(in_slots, 0)]),
        b_ub=np.append(-base / scale, slots),
        A_eq=np.hstack([one_each, np.zeros((n, 1))]),
        b_eq=np.ones(n),
        bounds=[(0, 1 if ok else 0) for ok in possible.ravel()] + [(0, None)],
        method="highs",
    )
    assert found.success, f"the solver gave up: {found.message}"
    return float(found.fun) * scale


def _possible(options: Options) -> NDArray[np.bool_]:
    return np.isfinite(options.time).ravel()


def _scale(options: Options) -> float:
    return max(float(options.use.max()), 1.0)


def _solve(options: Options, integral: bool, gap: float = GAP, seconds: float = SECONDS) -> Any:
    """Variables: one per possible (expert, option), then the makespan; scaled to about 1."""
    from scipy import sparse

    optimize = _optimize()
    n, _, resources = options.use.shape
    possible, scale = _possible(options), _scale(options)
    assert np.isfinite(options.time).any(axis=1).all(), "an expert that no device can serve"
    columns = options.use.reshape(n * OPTIONS, resources)[possible].T / scale
    owner = np.repeat(np.arange(n), OPTIONS)[possible]
    one_each = sparse.coo_matrix(
        (np.ones(len(owner)), (owner, np.arange(len(owner)))), (n, len(owner))
    )
    rows = sparse.bmat(
        [[sparse.csr_matrix(columns), -np.ones((resources, 1))], [one_each, np.zeros((n, 1))]]
    )
    lower = np.concatenate([np.full(resources, -np.inf), np.ones(n)])
    upper = np.concatenate([-options.base / scale, np.ones(n)])
    count = len(owner)
    found = optimize.milp(
        np.append(np.zeros(count), 1.0),
        constraints=optimize.LinearConstraint(rows.tocsr(), lower, upper),
        integrality=np.append(np.full(count, int(integral)), 0),
        bounds=optimize.Bounds(np.zeros(count + 1), np.append(np.ones(count), np.inf)),
        options={"mip_rel_gap": gap, "time_limit": seconds},
    )
    assert found.status in (0, 1), f"the solver gave up: {found.message}"
    return found


def _optimize() -> Any:
    try:
        from scipy import optimize
    except ImportError as error:
        raise MissingExtra("an exact schedule over three devices", "optimal") from error
    return optimize
