"""Rows and table of a CPU with two cores: all programs pinned to the same two, and our kernels also
as a processor with fewer instructions would choose them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.marked_page import table
from benchmarks.performance_cpu_tables import LLAMA, least, spread, test_words
from benchmarks.performance_goals import CPU_DECODE, CPU_PROMPT, cpu_prompt
from benchmarks.performance_options import MeasurementOptions
from benchmarks.performance_results import ResultRow, Results
from benchmarks.performance_row import CPU, MOESAIC, Conditions, Row, against
from moesaic.kernels.cores import all_cores

SECTION = "cpu-two"
_CORES = 2
_BEST = ""  # kernels: what `moesaic` chooses itself
_MEASURED = (
    ("bf16", _BEST, 70), ("int4", _BEST, 40), ("bf16", "avx512-vnni", 80),
    ("int4", "avx512-vnni", 45), ("int4", "avx2", 45),
)  # fmt: skip
# What PyTorch and its libraries may use beside such kernels: the rest of a prompt is theirs.
_LIBRARIES: Mapping[str, Mapping[str, str]] = {
    "avx512-vnni": {
        "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI", "MKL_ENABLE_INSTRUCTIONS": "AVX512_E1",
    },
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
}  # fmt: skip
_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"


def rows(asked: MeasurementOptions) -> Iterator[Row]:
    sizes, cores = asked.sizes, _two_cores()
    peers = against(asked, *LLAMA)
    missing = None if peers else "neither --llama-bench nor --ik-llama-bench was given"
    if cores is None:
        missing = f"{_CORES} cores are needed, and this process cannot be pinned to as many"
    common = (
        *(MOESAIC, "bench", *CPU, "--synthetic", sizes.qwen, "--layers", str(sizes.two_layers)),
        *("-p", str(sizes.two_prompt), "-n", str(sizes.decode), "--threads", str(_CORES)),
        *("--repetitions", str(asked.repetitions), "--dtype", "bf16"),
    )
    for dtype, kernel, seconds in _MEASURED:
        precision = ("--expert-dtype", "int4", "--dense-dtype", "int4") if dtype == "int4" else ()
        kernels = ("--kernel", kernel) if kernel else ()
        conditions = Conditions(cores or (), _LIBRARIES.get(kernel, {}))
        command = (*common, *precision, *kernels, "--json", *peers)
        yield Row(
            SECTION, _name(dtype, kernel), command, seconds, "against", missing, conditions
        )  # fmt: skip


def _name(dtype: str, kernel: str) -> str:
    return f"{dtype}-{kernel}" if kernel else dtype


def _two_cores() -> tuple[int, ...] | None:
    """The first two that are not threads of one core; None where there are none, or where the
    system cannot pin."""
    if not hasattr(os, "sched_setaffinity"):
        return None
    found: dict[str, int] = {}
    for core in all_cores():
        found.setdefault(_siblings(core), core)
    chosen = tuple(found.values())[:_CORES]
    return chosen if len(chosen) == _CORES else None


def _siblings(core: int) -> str:
    """The hardware threads of the core that this is one of."""
    try:
        return Path(_SIBLINGS.format(core)).read_text(encoding="utf-8").strip()
    except OSError:
        return str(core)


def cpu_two(results: Results) -> Iterator[str]:
    lines = [
        line
        for dtype, kernel, _ in _MEASURED
        if (row := results.row(SECTION, _name(dtype, kernel))) is not None
        for line in _lines(row, dtype, kernel)
    ]
    if lines:
        head = ("", "our kernels", "Moesaic, tokens/s", *LLAMA, "over the better", "asked")
        yield table(head, lines)


def _lines(row: ResultRow, dtype: str, kernel: str) -> Iterator[list[str]]:
    for ours in row.all_of(name="moesaic"):
        test = ours["test"]
        prompt = CPU_PROMPT if kernel else cpu_prompt(dtype, row.machine.get("isa", []))
        goal = CPU_DECODE[dtype] if test.startswith("tg") else prompt
        others = [row.of(name=name, test=test) for name in LLAMA]
        yield [
            f"{test_words(test)}, {dtype}", kernel or row.machine.get("kernels", "?"),
            spread(ours), *map(spread, others), goal.cell(least(others)), goal.words,
        ]  # fmt: skip
