"""The systems TriMoE is compared with, as choices over the same options.

All have the same experts in GPU memory, the same bandwidth rules and the same predictor; they
differ in which devices they use and how they divide a layer. Costs for Klotski are to be
`pipelined`: its point is that cold experts are loaded while hot ones are computed."""

from __future__ import annotations

import numpy as np

from moesaic.policies.compiled import compiled
from moesaic.policies.tri.costs import ON_CPU, ON_GPU, ON_NDP
from moesaic.policies.tri.layer import Bools, Ints, Options, busy_times

GPU_ONLY = np.array([True, False, False])
GPU_CPU = np.array([True, True, False])
GPU_NDP = np.array([True, False, True])


@compiled
def klotski(options: Options) -> Ints:
    """Everything on the GPU."""
    return np.full(len(options.time), ON_GPU, dtype=np.int64)


@compiled
def most_loaded_to_gpu(options: Options, loads: Ints, resident: Bools, elsewhere: int) -> Ints:
    """Resident experts on the GPU, the rest elsewhere; then the most loaded of the rest are loaded
    into the GPU, as many as make the makespan smallest."""
    n = len(loads)
    choice = np.full(n, elsewhere, dtype=np.int64)
    for i in range(n):
        if resident[i] or options.time[i, elsewhere] == np.inf:
            choice[i] = ON_GPU
    busy = busy_times(options, choice)
    best, count, taken = busy.max(), 0, 0
    order = np.argsort(-loads)
    for i in order:
        if choice[i] == ON_GPU or options.time[i, ON_GPU] == np.inf:
            continue
        busy += options.use[i, ON_GPU] - options.use[i, elsewhere]
        taken += 1
        if busy.max() < best:
            best, count = busy.max(), taken
    for i in order:
        if count and choice[i] == elsewhere and options.time[i, ON_GPU] < np.inf:
            choice[i] = ON_GPU
            count -= 1
    return choice


def enhanced_ktransformers(options: Options, loads: Ints, resident: Bools) -> Ints:
    """kTransformers with prefetching: missed experts on the CPU, hot ones loaded on demand."""
    return most_loaded_to_gpu(options, loads, resident, ON_CPU)


def monde(options: Options, loads: Ints, resident: Bools) -> Ints:
    """MoNDE: weights of the most loaded experts go to the GPU, activations of the others to the
    DIMMs."""
    return most_loaded_to_gpu(options, loads, resident, ON_NDP)
