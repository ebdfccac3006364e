"""One run of the kernel benchmark: stores are filled, rounds measured, rows and goals made."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

import torch

from benchmarks.kernel_cases import MODELS, PROMPT_MODEL, Case, even_case, prompt_case
from benchmarks.kernel_contenders import Contender, Native, PyTorch, random_experts, slots_for
from benchmarks.kernel_goals import Latency
from benchmarks.kernel_kt import version
from benchmarks.kernel_process import (
    CaseResult,
    in_a_row,
    in_process,
    result_of,
    shared_effort,
    spinning_rounds,
    together,
)
from benchmarks.kernel_rounds import Effort, Roofline, RooflineProbe, measure, median_roofline
from benchmarks.kernel_rows import Row, RowKey, Work, make_row
from moesaic.cli.shared.output import progress
from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.host import memory
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.instruction_sets import REFERENCE, kernel_description
from moesaic.kernels.native import NativeKernel
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.model_info.expert_block import block_bytes

# How much of the machine other programs used while something was measured. Two busy processes on
# two cores halve every number of a benchmark; a reader should know.

STAT = Path("/proc/stat")
IDLE = (3, 4)  # of a line's fields: idle, waiting for a disk
COUNTED = 8  # fields up to stolen time; guests' time is in them already


@dataclass(frozen=True, slots=True)
class CpuTimes:
    wall_s: float
    busy_s: float  # all programs', and what other guests of the host took
    own_s: float  # this process's, and that of those it has waited for
    cores: int


def now(stat: Path = STAT) -> CpuTimes | None:
    """None where the system does not say."""
    try:
        lines = stat.read_text().splitlines()
        total = [int(field) for field in lines[0].split()[1 : COUNTED + 1]]
    except (OSError, ValueError, IndexError):
        return None
    busy = sum(ticks for index, ticks in enumerate(total) if index not in IDLE)
    cores = sum(line.startswith("cpu") for line in lines) - 1
    own = os.times()
    ticks_per_s = os.sysconf("SC_CLK_TCK")
    return CpuTimes(time.monotonic(), busy / ticks_per_s, sum(own[:4]), cores)


def others_share(before: CpuTimes | None, after: CpuTimes | None) -> float | None:
    """Of the machine's time in between, what others used."""
    if before is None or after is None or after.wall_s <= before.wall_s:
        return None
    others = (after.busy_s - before.busy_s) - (after.own_s - before.own_s)
    return max(0.0, others / (after.cores * (after.wall_s - before.wall_s)))


LATENCIES, PAUSES = 5000, 20
PROCESS_TURNS = 3  # of ours and of a contender with spinning threads
OTHER_BYTES = 3 << 30  # hidden states, workspaces, PyTorch; what kt-kernel packs from


@dataclass(frozen=True, slots=True)
class KernelOptions:
    models: tuple[str, ...]
    tokens: tuple[int, ...]
    dtypes: tuple[str, ...]
    threads: int
    kt_threads: int
    kernel: str
    store_bytes: int  # of every contender
    effort: Effort

    def cases(self, model: str) -> list[Case]:
        cases = [even_case(model, tokens) for tokens in self.tokens]
        return [*cases, prompt_case()] if model == PROMPT_MODEL else cases


@dataclass(frozen=True, slots=True)
class KernelResults:
    rows: list[Row]
    ceilings: list[Roofline]
    latency: Latency | None
    others_share: float | None  # of the machine's time while this was measured


def run(asked: KernelOptions) -> KernelResults:
    check(asked)
    before, latency = now(), start_latency(asked)
    rows: list[Row] = []
    ceilings: list[Roofline] = []
    for model in asked.models:
        measured = run_model(asked, model)
        rows += measured[0]
        ceilings += measured[1]
    return KernelResults(rows, ceilings, latency, others_share(before, now()))


def run_model(asked: KernelOptions, model: str) -> tuple[list[Row], list[Roofline]]:
    """Turns of processes: ours, then kt-kernel's where it is installed."""
    turns = PROCESS_TURNS if version() else 1
    cases = asked.cases(model)
    done: list[list[CaseResult]] = []  # by turn and case
    with progress(model, turns) as advance:
        for _ in range(turns):
            done.append(one_turn(asked, model, cases, turns))
            advance()
    merged = [in_a_row([turn[number] for turn in done]) for number in range(len(cases))]
    rows = [row for case, one in zip(cases, merged, strict=True) for row in rows_of(case, one)]
    return rows, [turn.ceiling for one in merged for each in one.rounds for turn in each.values()]


def one_turn(
    asked: KernelOptions, model: str, cases: Sequence[Case], turns: int
) -> list[CaseResult]:
    ours = in_process(our_rounds, asked, model, cases, shared_effort(asked.effort, turns))
    if not version():
        return ours
    seen = [(len(one.rounds), median_roofline(one.rounds)) for one in ours]
    theirs = in_process(
        spinning_rounds, model, cases, asked.dtypes, asked.kt_threads, asked.store_bytes, seen
    )
    return [together(pair) for pair in zip(ours, theirs, strict=True)]


def our_rounds(
    asked: KernelOptions, model: str, cases: Sequence[Case], effort: Effort
) -> list[CaseResult]:
    """The native kernels and PyTorch, whose threads sleep when they have nothing to do."""
    torch.set_num_threads(asked.threads)
    with torch.inference_mode():
        contenders = enter(asked, model)
        native = next(one for one in contenders if isinstance(one, Native))
        ceilings = RooflineProbe(native, asked.threads)
        return [
            result_of(case, contenders, measure(case, contenders, ceilings, effort))
            for case in cases
        ]


def check(asked: KernelOptions) -> None:
    """Before anything is allocated."""
    for model in asked.models:
        native_kernel(asked, model, asked.dtypes[0])
    needed, available = max(needed_bytes(asked, model) for model in asked.models), memory()[1]
    if available is not None and needed > available:
        raise ImpossibleSetting(
            f"the stores need {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are available: "
            "lower --store-gb, or ask for fewer --shapes or --dtypes"
        )


def needed_bytes(asked: KernelOptions, model: str) -> int:
    shape = MODELS[model].shape
    dtypes = [*asked.dtypes, "bf16"]  # PyTorch's; kt-kernel's follow in a process of their own
    blocks = (block_bytes(dtype, shape.hidden, shape.intermediate) for dtype in dtypes)
    return sum(block * slots_for(block, asked.store_bytes) for block in blocks) + OTHER_BYTES


def native_kernel(asked: KernelOptions, model: str, dtype: str) -> NativeKernel:
    kernel = make_kernel(MODELS[model].shape, dtype, asked.kernel)
    if not isinstance(kernel, NativeKernel):
        raise ImpossibleSetting(
            f"this measures the native kernels, but {dtype} would be computed by "
            f"{kernel_description(REFERENCE)}"
        )
    return kernel


def enter(asked: KernelOptions, model: str) -> list[Contender]:
    """The native kernels first."""
    shape, size = MODELS[model].shape, asked.store_bytes
    experts = random_experts(shape)
    contenders: list[Contender] = [
        Native(native_kernel(asked, model, dtype), asked.threads, experts, size)
        for dtype in asked.dtypes
    ]
    contenders.append(PyTorch(shape, experts, size))
    return contenders


def rows_of(case: Case, measured: CaseResult) -> list[Row]:
    reference = measured.outputs["pytorch", "bf16"]
    rows = []
    for (by, dtype), output in measured.outputs.items():
        key = RowKey(case.model, case.tokens, case.experts, by, dtype)
        work = Work(case.experts * measured.expert_bytes[by, dtype], case.flops)
        error = float((output - reference).norm() / reference.norm())
        rows.append(make_row(key, measured.rounds, work, error))
    return rows


def start_latency(asked: KernelOptions) -> Latency | None:
    """From submitting a job to its first instruction on a worker that is awake."""
    if asked.threads == 1:
        return None
    pool = NativeExecutor(
        native_kernel(asked, asked.models[0], asked.dtypes[0]), asked.threads
    ).pool
    microseconds: list[float] = []
    for _ in range(PAUSES):  # where the system puts the caller is part of it, and changes
        time.sleep(0.01)
        microseconds += [ns / 1e3 for ns in pool.start_latencies(LATENCIES // PAUSES)]
    return Latency(median(microseconds), quantiles(microseconds, n=100)[-1])
