"""llama.cpp's `llama-batched-bench`: several sequences that decode at once."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.against.program_runs import checked_rate, output_of
from moesaic.lab.bench.cases import Case

PROGRAM = "llama-batched-bench"
OPTIONS = ("-ngl", "0", "-fa", "on")  # llama-bench's for a CPU, in this program's spelling
_PROMPT = 1  # token of every sequence: it has no test from an empty context


def beside(llama_bench: Path) -> Path:
    return llama_bench.with_name(PROGRAM)


def check_cases(cases: Sequence[Case], llama_bench: Path) -> None:
    """Refuses tests of several sequences where the program for them is not there."""
    batched = [case.name for case in cases if case.batch > 1]
    if batched and not os.access(beside(llama_bench), os.X_OK):
        raise ImpossibleSetting(
            f"{batched[0]} was asked for, and several sequences at once are measured by {PROGRAM}, "
            f"which is not beside {llama_bench}: build it there (cmake --build build --target "
            f"{PROGRAM}), or leave out --batch"
        )


def batched_rate(program: Path, model: Path, threads: int, case: Case) -> float:
    """Tokens per second of all sequences together."""
    context = case.batch * (_PROMPT + case.tokens)
    command = [
        *(str(program), "-m", str(model), "-t", str(threads), *OPTIONS, "-c", str(context)),
        *("-npp", str(_PROMPT), "-ntg", str(case.tokens), "-npl", str(case.batch)),
        *("--output-format", "jsonl"),
    ]
    for line in output_of(command, gpu=False).splitlines():
        if not line.startswith("{"):
            continue
        try:
            test = json.loads(line)
        except ValueError:
            continue
        if (test.get("tg"), test.get("pl")) == (case.tokens, case.batch):
            return checked_rate(test.get("speed_tg"), program)
    raise ImpossibleSetting(f"{program} did not report its test {case.name}")
