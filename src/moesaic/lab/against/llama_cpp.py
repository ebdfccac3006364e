"""llama.cpp's `llama-bench`, where a user has built it: a contender, never a dependency."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.against.rounds import Rates
from moesaic.lab.bench.cases import Case

PROGRAM = "llama-bench"
_LAST_LINES = 3  # of what a failing program said
TIME_LIMIT_S = 1800.0  # of one test, loading included: far more than any that makes sense


def find_program(path: str) -> Path:
    """`path` is the program or a folder that has it, perhaps in build/bin or bin."""
    given = Path(path).expanduser()
    for one in (given, *(given / below / PROGRAM for below in ("", "build/bin", "bin"))):
        if one.is_file():
            if not os.access(one, os.X_OK):
                raise ImpossibleSetting(f"{one} cannot be executed: is it the program?")
            return one.absolute()  # a name alone would be searched in PATH
    raise ImpossibleSetting(
        f"there is no {PROGRAM} at {path}: build llama.cpp's (cmake --build build --target "
        f"{PROGRAM}) and give its path or folder, as in --against llama.cpp=/home/me/llama.cpp"
    )


@dataclass(frozen=True, slots=True)
class LlamaCpp:
    program: Path
    model: Path
    kind: str  # of all matrices
    threads: int
    cases: tuple[Case, ...]
    offloading: tuple[str, ...] = ("-ngl", "0")  # what is on the GPU: nothing

    name = "llama.cpp"

    @property
    def words(self) -> str:
        return f"everything in {self.kind}"

    def turn(self) -> Rates:
        return {case.name: self._test(case) for case in self.cases}

    def _test(self, case: Case) -> float:
        reading = case.phase == "prefill"
        prompt, answer = (case.tokens, 0) if reading else (0, case.tokens)
        tests = run_program(
            [
                *(str(self.program), "-m", str(self.model), "-t", str(self.threads)),
                *("-p", str(prompt), "-n", str(answer), "-r", "1", *self.offloading, "-fa", "1"),
                *("-o", "json"),
            ]
        )
        for test in tests:
            if (test.get("n_prompt"), test.get("n_gen")) == (prompt, answer):
                return _rate(test, self.program)
        raise ImpossibleSetting(f"{self.program} did not report its test {case.name}")


def run_program(command: Sequence[str]) -> list[dict[str, Any]]:
    """The tests that it prints as JSON."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=TIME_LIMIT_S,
        )
    except subprocess.TimeoutExpired:  # it was ended
        raise ImpossibleSetting(
            f"{command[0]} had not ended after {TIME_LIMIT_S:g} s and was stopped: measure fewer "
            "tokens (-p, -n) or a smaller model, or leave it out"
        ) from None
    except OSError as error:
        raise ImpossibleSetting(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = " | ".join(done.stderr.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
        raise ImpossibleSetting(f"{command[0]} failed with code {done.returncode}: {said}")
    try:
        found = json.loads(done.stdout)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(test, dict) for test in found):
        raise ImpossibleSetting(
            f"{command[0]} printed no JSON with -o json: is it llama.cpp's {PROGRAM}?"
        )
    return found


def _rate(test: dict[str, Any], program: Path) -> float:
    rate = test.get("avg_ts")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
        raise ImpossibleSetting(f"{program} reported a rate of {rate!r} tokens/s")
    return float(rate)


def check_cases(cases: Sequence[Case]) -> None:
    batched = [case.name for case in cases if case.batch > 1]
    if batched:
        raise ImpossibleSetting(
            f"{batched[0]} was asked for, but {PROGRAM} measures one sequence at a time: leave out "
            "--batch, or --against llama.cpp"
        )
