"""What this processor multiplies at best: the peak of its arithmetic units, by loops on registers.

A ceiling is the processor's, never a library's: a library may be slow here, and a floor computed
from it would be beaten. Only where the native module is missing is a library's product all there
is, and the unit says so."""

from __future__ import annotations

from typing import Any

import torch

from moesaic.kernels.cores import worker_cores
from moesaic.kernels.dtypes import torch_dtype
from moesaic.kernels.instruction_sets import native
from moesaic.kernels.products import linear
from moesaic.lab.profile.timing import min_ns, on_lane
from moesaic.machines.real.lane import Lane

LIBRARY = "PyTorch's product, not the processor's peak"
# Units that may multiply activations of a precision, and what experts are stored in.
_UNITS = {"fp32": ("fp32",), "bf16": ("fp32", "bf16"), "fp16": ("fp32", "bf16")}
_CODED = ("int8", "int4")
_ROWS, _WIDTH = (8, 64, 512), 2048  # the last is large enough for the full rate
_ENOUGH_NS = 50_000_000  # a product that takes longer says what a larger one would
_ATTEMPTS, _ITEMS, _SPIN_US = 5, 64, 50.0


def compute_peak(lane: Lane, threads: int, dtype: str, expert_dtype: str) -> tuple[float, str]:
    """TFLOPS of so many threads, and the unit that reaches them."""
    found = native()
    units = {} if found is None else usable_units(found.peaks(), dtype, expert_dtype)
    if found is None or not units:
        return _library_tflops(lane, dtype), LIBRARY
    return processor_peak(found, units, threads)


def usable_units(units: dict[str, float], dtype: str, expert_dtype: str) -> dict[str, float]:
    """Of the processor's units (operations per item by name, as in "bf16-amx"), those that can
    multiply in these precisions."""
    kinds = (*_UNITS[dtype], *(("int8",) if expert_dtype in _CODED else ()))
    return {name: ops for name, ops in units.items() if name.partition("-")[0] in kinds}


def processor_peak(found: Any, units: dict[str, float], threads: int) -> tuple[float, str]:
    pool, items = found.Pool(worker_cores(threads), _SPIN_US), _ITEMS * threads
    rates = {
        unit: items * ops / min(pool.peak_seconds(unit, items) for _ in range(_ATTEMPTS)) / 1e12
        for unit, ops in units.items()
    }
    best = max(rates, key=rates.__getitem__)
    return rates[best], f"{best} peak"


def _library_tflops(lane: Lane, dtype: str) -> float:
    """Of the largest product that is quick: where a library has no instructions for a precision,
    as for fp16 on many processors, a large one takes half a minute."""
    for rows in _ROWS:
        best = _product_ns(lane, rows, dtype)
        if best > _ENOUGH_NS:
            break
    else:
        best = min(best, *(_product_ns(lane, rows, dtype) for _ in range(_ATTEMPTS - 1)))
    return 2.0 * rows * _WIDTH * _WIDTH / best / 1e3


def _product_ns(lane: Lane, rows: int, dtype: str) -> int:
    left = torch.ones((rows, _WIDTH), dtype=torch_dtype(dtype))
    right = torch.ones((_WIDTH, _WIDTH), dtype=torch_dtype(dtype))

    def multiply() -> None:
        linear(left, right)

    return min_ns(on_lane(lane, lambda attempt: multiply), times=1)
