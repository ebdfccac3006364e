"""How long the machine takes for things, measured: what a brain's belief is made of."""

from __future__ import annotations

from statistics import median
from time import perf_counter_ns
from typing import TYPE_CHECKING

import torch

from moesaic.core.plan import Transfer
from moesaic.core.view import CPU
from moesaic.machines.real.copies import Copy

if TYPE_CHECKING:
    from moesaic.machines.real.machine import RealMachine

_TIMES = 5


def time_experts(machine: RealMachine, device: str, tokens: int, experts: int) -> int:
    """Nanoseconds from handing over so many experts of so many tokens each to their end; another
    set of experts every time, so that no cache holds them. Without an accelerator, its time is
    the CPU's: nobody will use it."""
    kernel, store = machine.store.kernel, machine.store
    hidden = torch.randn((tokens, kernel.shape.hidden), generator=torch.Generator().manual_seed(0))
    hidden = hidden.to(machine.dtype)
    weights, out = torch.ones(tokens), torch.zeros((tokens, kernel.shape.hidden))
    lane, blocks = machine.cpu, store.some_blocks(experts * (_TIMES + 1))
    if device != CPU and machine.accelerator is not None:
        lane, blocks = machine.accelerator.lane, machine.accelerator.filled(store)
    measured = []
    for attempt in range(_TIMES + 1):
        chosen = [blocks[(attempt * experts + i) % len(blocks)] for i in range(experts)]

        def compute(chosen: list[torch.Tensor] = chosen) -> None:
            for block in chosen:
                kernel.compute(block, hidden, None, weights, out)

        started = perf_counter_ns()
        with torch.inference_mode():
            lane.submit(compute)
            lane.join()
        measured.append(perf_counter_ns() - started)
    return round(median(measured[1:]))


def time_transfer(machine: RealMachine) -> int:
    """Nanoseconds from demanding one expert to its arrival."""
    if machine.accelerator is None:
        return 0
    measured = []
    for block in machine.store.some_blocks(_TIMES):
        copy = Copy(Transfer(0, 0), block, machine.accelerator.staging(), "transfer")
        started = perf_counter_ns()
        machine.accelerator.link.demand([copy])
        copy.wait()
        measured.append(perf_counter_ns() - started)
    return round(median(measured))
