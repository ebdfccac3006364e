"""One run of the kernel benchmark: stores are filled, rounds measured, rows and goals made."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from statistics import median, quantiles

import torch

from benchmarks.kernel_background_load import now, others_share
from benchmarks.kernel_cases import MODELS, PROMPT_MODEL, Case, even_case, prompt_case
from benchmarks.kernel_contenders import Contender, Native, PyTorch, random_experts, slots_for
from benchmarks.kernel_goals import Latency
from benchmarks.kernel_kt import KtKernel, Workers, version
from benchmarks.kernel_rounds import Effort, Roofline, RooflineProbe, Round, measure
from benchmarks.kernel_rows import Row, RowKey, Work, make_row
from moesaic.cli.shared.output import progress
from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.host import memory
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.instruction_sets import REFERENCE, kernel_description
from moesaic.kernels.native import NativeKernel
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.model_info.expert_block import block_bytes

LATENCIES, PAUSES = 5000, 20
OTHER_BYTES = 3 << 30  # hidden states, workspaces, PyTorch; what kt-kernel packs from


@dataclass(frozen=True, slots=True)
class Asked:
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
class Found:
    rows: list[Row]
    ceilings: list[Roofline]
    latency: Latency | None
    others_share: float | None  # of the machine's time while this was measured


def run(asked: Asked) -> Found:
    """Each shape in a process of its own: not every contender frees its memory."""
    check(asked)
    before, latency = now(), start_latency(asked)
    rows: list[Row] = []
    ceilings: list[Roofline] = []
    for model in asked.models:
        with ProcessPoolExecutor(1, get_context("spawn"), initializer=silence) as process:
            measured = process.submit(run_model, asked, model).result()
        rows += measured[0]
        ceilings += measured[1]
    return Found(rows, ceilings, latency, others_share(before, now()))


def silence() -> None:
    """kt-kernel announces itself on standard output, past Python, and says goodbye."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def run_model(asked: Asked, model: str) -> tuple[list[Row], list[Roofline]]:
    torch.set_num_threads(asked.threads)
    cases = asked.cases(model)
    rows: list[Row] = []
    seen: list[Roofline] = []
    with progress(model, len(cases)) as advance, torch.inference_mode():
        contenders = enter(asked, model, cases)
        native = next(one for one in contenders if isinstance(one, Native))
        ceilings = RooflineProbe(native, asked.threads)
        for case in cases:
            rounds = measure(case, contenders, ceilings, asked.effort)
            seen += [turn.ceiling for turns in rounds for turn in turns.values()]
            rows += rows_of(case, contenders, rounds)
            advance()
    return rows, seen


def check(asked: Asked) -> None:
    """Before anything is allocated."""
    for model in asked.models:
        native_kernel(asked, model, asked.dtypes[0])
    needed, available = max(needed_bytes(asked, model) for model in asked.models), memory()[1]
    if available is not None and needed > available:
        raise ImpossibleSetting(
            f"the stores need {needed / 1e9:.1f} GB and {available / 1e9:.1f} GB are available: "
            "lower --store-gb, or ask for fewer --shapes or --dtypes"
        )


def needed_bytes(asked: Asked, model: str) -> int:
    shape = MODELS[model].shape
    dtypes = [*asked.dtypes, "bf16"]  # PyTorch's
    if version():
        dtypes += asked.dtypes
    blocks = (block_bytes(dtype, shape.hidden, shape.intermediate) for dtype in dtypes)
    return sum(block * slots_for(block, asked.store_bytes) for block in blocks) + OTHER_BYTES


def native_kernel(asked: Asked, model: str, dtype: str) -> NativeKernel:
    kernel = make_kernel(MODELS[model].shape, dtype, asked.kernel)
    if not isinstance(kernel, NativeKernel):
        raise ImpossibleSetting(
            f"this measures the native kernels, but {dtype} would be computed by "
            f"{kernel_description(REFERENCE)}"
        )
    return kernel


def enter(asked: Asked, model: str, cases: Sequence[Case]) -> list[Contender]:
    """All contenders, the native kernels first."""
    shape, size = MODELS[model].shape, asked.store_bytes
    experts = random_experts(shape)
    contenders: list[Contender] = [
        Native(native_kernel(asked, model, dtype), asked.threads, experts, size)
        for dtype in asked.dtypes
    ]
    contenders.append(PyTorch(shape, experts, size))
    if version():
        workers = Workers(asked.kt_threads)
        for dtype in asked.dtypes:
            contenders.append(KtKernel(workers, shape, dtype, experts, size, cases))
    return contenders


def rows_of(case: Case, contenders: Sequence[Contender], rounds: Sequence[Round]) -> list[Row]:
    reference = next(one for one in contenders if isinstance(one, PyTorch)).ready(case)().float()
    rows = []
    for one in contenders:
        difference = one.ready(case)().float() - reference
        key = RowKey(case.model, case.tokens, case.experts, one.by, one.dtype)
        work = Work(case.experts * one.expert_bytes, case.flops)
        error = float(difference.norm() / reference.norm())
        rows.append(make_row(key, rounds, work, error))
    return rows


def start_latency(asked: Asked) -> Latency | None:
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
