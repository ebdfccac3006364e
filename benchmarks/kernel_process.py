"""What one process of the kernel benchmark measures.

A contender whose threads spin is alone in its process: beside our workers kt-kernel's one-token
call takes 14 ms instead of 1. Processes take turns; what they measured in one turn is compared."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any, TypeVar

import torch

from benchmarks.kernel_cases import MODELS, Case
from benchmarks.kernel_contenders import Contender, random_experts
from benchmarks.kernel_kt import KtKernel, Workers
from benchmarks.kernel_rounds import Effort, Roofline, Round, Turn, Who, calls_for, seconds_per_call

ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class CaseResult:
    """One case in one process: rounds, and by contender what it computed and read."""

    rounds: list[Round]
    outputs: dict[Who, Any]  # fp32 [tokens, hidden]
    expert_bytes: dict[Who, int]


def in_process(work: Callable[..., ResultT], *arguments: object) -> ResultT:
    """In a process of its own, which ends: not every contender frees its memory, or sleeps."""
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=_silence) as process:
        return process.submit(work, *arguments).result()


def _silence() -> None:
    """kt-kernel announces itself on standard output, past Python, and says goodbye."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def spinning_rounds(
    model: str,
    cases: Sequence[Case],
    dtypes: Sequence[str],
    threads: int,
    store_bytes: int,
    rounds: Sequence[tuple[int, Roofline]],
) -> list[CaseResult]:
    """kt-kernel alone: as many rounds of every case as ours had in this turn, under the roofline
    that ours saw."""
    shape = MODELS[model].shape
    experts, workers = random_experts(shape), Workers(threads)
    kernels: list[Contender] = [
        KtKernel(workers, shape, dtype, experts, store_bytes, cases) for dtype in dtypes
    ]
    found = []
    with torch.inference_mode():
        for case, (count, ceiling) in zip(cases, rounds, strict=True):
            calls = {one.dtype: calls_for(one, case) for one in kernels}
            turns: list[Round] = [
                {
                    (one.by, one.dtype): Turn(
                        seconds_per_call(one, case, calls[one.dtype]), ceiling
                    )
                    for one in kernels
                }
                for _ in range(count)
            ]
            found.append(result_of(case, kernels, turns))
    return found


def result_of(case: Case, contenders: Sequence[Contender], rounds: list[Round]) -> CaseResult:
    return CaseResult(
        rounds,
        {(one.by, one.dtype): one.ready(case)().float().clone() for one in contenders},
        {(one.by, one.dtype): one.expert_bytes for one in contenders},
    )


def together(results: Sequence[CaseResult]) -> CaseResult:
    """What several processes measured in one turn, round by round."""
    rounds: list[Round] = [
        {who: turn for one in turns for who, turn in one.items()}
        for turns in zip(*(result.rounds for result in results), strict=True)
    ]
    outputs = {who: out for result in results for who, out in result.outputs.items()}
    sizes = {who: size for result in results for who, size in result.expert_bytes.items()}
    return CaseResult(rounds, outputs, sizes)


def in_a_row(turns: Sequence[CaseResult]) -> CaseResult:
    """The turns of one case after one another."""
    rounds = [one for turn in turns for one in turn.rounds]
    return CaseResult(rounds, turns[-1].outputs, turns[-1].expert_bytes)


def shared_effort(effort: Effort, turns: int) -> Effort:
    """Of one turn of several."""
    least = max(1, -(-effort.min_rounds // turns))
    return Effort(effort.seconds / turns, least, max(least, effort.max_rounds // turns))
