"""How fast the CPU's experts are: `python -m benchmarks.kernels` (or `make bench-kernels`).

Time, GB/s and TFLOP/s of whole layer calls, next to this machine's streaming bandwidth and
arithmetic peak (measured in between, by the same workers), PyTorch's bf16 linear layers on as many
threads, and kt-kernel where it is installed, which takes turns in a process of its own. The last
table holds the results against the goals."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.kernel_goals import GOALS, Verdict, judge, judge_latency
from benchmarks.kernel_kt import version
from benchmarks.kernel_rows import Row, Spread, spread
from benchmarks.kernel_run import KernelOptions, KernelResults
from moesaic.cli.shared.output import print_table
from moesaic.core.errors import MoesaicError
from moesaic.hardware.host import this_host
from moesaic.kernels.instruction_sets import REFERENCE, choose, kernel_description, native


def main() -> None:
    if native() is None:
        sys.exit(
            f"there is nothing to measure; experts are computed by {kernel_description(REFERENCE)}"
        )
    from benchmarks.kernel_options import asked_for, parser
    from benchmarks.kernel_run import run

    usage = parser(__doc__ or "")
    options = usage.parse_args()
    try:
        asked = asked_for(options)
        found = run(asked)
    except MoesaicError as error:
        usage.error(str(error))
    show(asked, found)
    if options.json:
        write(options.json, asked, found)


if __name__ == "__main__":
    main()


# How the kernel benchmark's results are shown and written.

POINTS = ("shape", "tokens", "dtype", "ms", "best", "GB/s", "stream", "TFLOP/s", "peak")
MET = {True: "met", False: "not met", None: "-"}


def show(asked: KernelOptions, found: KernelResults) -> None:
    print_table(
        "One layer call; medians, shares of the ceilings, and how many times faster than others",
        (*POINTS, "PyTorch", "kt-kernel"),
        [_cells(row) for row in native_rows(found)],
    )
    stream, peak = ceilings(found)
    peak_words = f"{peak.median:.2f} TFLOP/s (best {peak.best:.2f})" if peak else "no peak"
    waiting = f"(OMP_WAIT_POLICY={os.environ.get('OMP_WAIT_POLICY', 'default')})"
    kt = version()
    others = f"kt-kernel {kt}, {asked.kt_threads} threads" if kt else "kt-kernel: not installed"
    print(f"kernels: {kernel_description(choose(asked.kernel))}; {asked.threads} threads")
    print(f"ceilings: {stream.median:.1f} GB/s (best {stream.best:.1f}), {peak_words}")
    print(f"others: PyTorch {torch.__version__}, bf16, {asked.threads} threads {waiting}; {others}")
    if found.others_share is not None:
        print(f"other programs used {found.others_share:.0%} of this machine meanwhile")
    print_table(
        "Goals, each at its worst point",
        ("asked", "reached", "where", "best round", ""),
        [(v.asked, v.reached, v.where, v.best, MET[v.met]) for v in verdicts(found)],
    )


def write(path: Path, asked: KernelOptions, found: KernelResults) -> None:
    stream, peak = ceilings(found)
    everything: dict[str, Any] = {
        "host": asdict(this_host()),
        "torch": str(torch.__version__),
        "omp_wait_policy": os.environ.get("OMP_WAIT_POLICY"),
        "kt_kernel": version(),
        "isa": choose(asked.kernel),
        "asked": asdict(asked),
        "stream_gb_s": asdict(stream),
        "peak_tflops": asdict(peak) if peak else None,
        "others_share": found.others_share,
        "latency": asdict(found.latency) if found.latency else None,
        "rows": [{**asdict(row.key), **_numbers(row)} for row in found.rows],
        "goals": [asdict(verdict) for verdict in verdicts(found)],
    }
    path.write_text(json.dumps(everything, indent=2) + "\n")


def verdicts(found: KernelResults) -> list[Verdict]:
    rows = native_rows(found)
    return [*(judge(goal, rows) for goal in GOALS), judge_latency(found.latency)]


def native_rows(found: KernelResults) -> list[Row]:
    return [row for row in found.rows if row.key.by == "moesaic"]


def ceilings(found: KernelResults) -> tuple[Spread, Spread | None]:
    peaks = [one.peak_tflops for one in found.ceilings if one.peak_tflops is not None]
    stream = spread([one.stream_gb_s for one in found.ceilings])
    return stream, spread(peaks) if peaks else None


def _numbers(row: Row) -> dict[str, Any]:
    numbers = asdict(row)
    del numbers["key"]
    return numbers


def _cells(row: Row) -> tuple[object, ...]:
    return (
        row.key.model,
        row.key.tokens,
        row.key.dtype,
        f"{row.ms.median:.2f}",
        f"{row.ms.best:.2f}",
        f"{row.gb_s.median:.1f}",
        _percent(row.of_stream),
        f"{row.tflops.median:.2f}",
        _percent(row.of_peak),
        _times(row, "pytorch"),
        _times(row, "kt-kernel"),
    )


def _percent(share: Spread | None) -> str | None:
    return f"{100 * share.median:.0f}%" if share else None


def _times(row: Row, other: str) -> str | None:
    times = row.times_faster.get(other)
    return f"{times.median:.1f}" if times else None
