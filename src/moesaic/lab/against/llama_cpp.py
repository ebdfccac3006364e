"""llama.cpp's `llama-bench`, where a user has built it: a contender, never a dependency."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.host import usable_cores
from moesaic.lab.against.llama_batched import OPTIONS as BATCHED_OPTIONS
from moesaic.lab.against.llama_batched import PROGRAM as BATCHED
from moesaic.lab.against.llama_batched import batched_rate, beside
from moesaic.lab.against.program_runs import checked_rate, output_of
from moesaic.lab.against.rounds import Rates
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.stock_peer import PeerRow

PROGRAM, NAME = "llama-bench", "llama.cpp"
CPU_ONLY = ("-ngl", "0", "-fa", "1")  # nothing is on a GPU; there it chooses for itself
# A fork with its own CPU kernels: fused expert layers, weights rearranged while it loads.
IK_OPTIONS = (*CPU_ONLY, "-fmoe", "1", "-rtr", "1")


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
    """`llama-bench`, and `llama-batched-bench` for several sequences at once."""

    program: Path
    model: Path
    kind: str  # of all matrices
    threads: int
    cases: tuple[Case, ...]
    options: tuple[str, ...] = CPU_ONLY
    name: str = NAME

    @property
    def words(self) -> str:
        """Tests of several sequences are another program's, with options of its own."""
        programs = (
            (PROGRAM, self.options, [case.name for case in self.cases if case.batch == 1]),
            (BATCHED, BATCHED_OPTIONS, [case.name for case in self.cases if case.batch > 1]),
        )
        used = [
            f"{', '.join(tests)} by {name} {' '.join(options)} -t {self.threads}"
            for name, options, tests in programs
            if tests
        ]
        return "; ".join([f"everything in {self.kind}", *used])

    def turn(self) -> Rates:
        """All tests of one sequence in one process: the model is loaded once."""
        single = [case for case in self.cases if case.batch == 1]
        tests = self._tests(single) if single else []
        return {
            case.name: (
                self._batched(case) if case.batch > 1 else mean(rates_of(tests, case, self.program))
            )
            for case in self.cases
        }

    def _tests(self, cases: Sequence[Case]) -> list[dict[str, Any]]:
        asked = command(self.program, self.model, [self.threads], cases, self.options)
        return run_program(asked, gpu=False)

    def _batched(self, case: Case) -> float:
        return batched_rate(beside(self.program), self.model, self.threads, case)


def command(
    program: Path,
    model: Path,
    threads: Sequence[int],
    cases: Sequence[Case],
    options: Sequence[str],
    repetitions: int = 1,
) -> list[str]:
    """Every prompt and every answer are a test of their own, with each number of threads."""
    counts = ",".join(map(str, threads))
    lengths = [
        ",".join(str(case.tokens) for case in cases if case.phase == phase) or "0"
        for phase in ("prefill", "decode")
    ]
    return [
        *(str(program), "-m", str(model), "-t", counts, "-p", lengths[0], "-n", lengths[1]),
        *("-r", str(repetitions), *options, "-o", "json"),
    ]


def rates_of(
    tests: Sequence[dict[str, Any]],
    case: Case,
    program: Path,
    layers_on_cpu: int | None = None,
    threads: int | None = None,
) -> list[float]:
    """Tokens per second of every repetition. `layers_on_cpu` and `threads`: of a process that had
    several."""
    asked = (case.tokens, 0) if case.phase == "prefill" else (0, case.tokens)
    for test in tests:
        same = layers_on_cpu in (None, test.get("n_cpu_moe"))
        same = same and threads in (None, test.get("n_threads"))
        if same and (test.get("n_prompt"), test.get("n_gen")) == asked:
            samples = test.get("samples_ts")
            found = samples if isinstance(samples, list) and samples else [test.get("avg_ts")]
            return [checked_rate(rate, program) for rate in found]
    raise ImpossibleSetting(f"{program} did not report its test {case.name}")


def run_program(command: Sequence[str], gpu: bool) -> list[dict[str, Any]]:
    """The tests that it prints as JSON."""
    try:
        found = json.loads(output_of(command, gpu))
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(test, dict) for test in found):
        raise ImpossibleSetting(
            f"{command[0]} printed no JSON with -o json: is it llama.cpp's {PROGRAM}?"
        )
    return found


# `llama-bench` with a GPU, as people run it today: all attention there, and the experts of as
# many last layers as ours had slots for (`--n-cpu-moe`).

_EVERY_LAYER = "99"


def gpu_arguments(configs: Sequence[BenchConfig], cases: Sequence[Case]) -> tuple[str, ...]:
    """Prompts are read in one piece, as ours are: it brings every expert once per piece."""
    longest = max((case.tokens for case in cases if case.phase == "prefill"), default=0)
    piece = str(min(max(longest, 1), configs[0].settings.step_tokens))
    batches = ("-b", piece, "-ub", piece) if longest else ()
    layers = ",".join(str(layers_on_cpu(config)) for config in configs)
    return ("-ngl", _EVERY_LAYER, "-ncmoe", layers, *batches)


def layers_on_cpu(config: BenchConfig) -> int:
    """The first ones, those that route only by being dense included: llama.cpp counts all."""
    spec = config.spec
    kept = config.plan.capacity.slots // spec.num_experts
    if kept >= spec.num_moe_layers:
        return 0
    return spec.moe_layers[spec.num_moe_layers - kept - 1] + 1


def measure_llama(
    program: Path,
    gguf: Path,
    kind: str,
    configs: Sequence[BenchConfig],
    cases: Sequence[Case],
    repetitions: int,
) -> list[PeerRow]:
    """All cache ratios in one process; tests of several sequences are left out. It runs with as
    many threads as ours and with one less (its threads spin, and one core drives the GPU), and the
    faster of both counts."""
    single = tuple(case for case in cases if case.batch == 1)
    if not single:
        return []
    threads = thread_counts(configs[0].settings.threads or usable_cores())
    arguments = gpu_arguments(configs, single)
    asked = command(program, gguf, threads, single, arguments, repetitions)
    tests = run_program(asked, gpu=True)
    rows = []
    for config in configs:
        layers = layers_on_cpu(config)
        where = f"{kind}, {layers} layers' experts on the CPU, {' '.join(arguments)}"
        for case in single:
            by_threads = {count: rates_of(tests, case, program, layers, count) for count in threads}
            best = max(threads, key=lambda count: mean(by_threads[count]))
            rates = by_threads[best]
            spread = stdev(rates) if len(rates) > 1 else None
            share, words = config.plan.cache_ratio, f"{where} -t {best}"
            rows.append(PeerRow(NAME, case.name, share, mean(rates), spread, words))
    return rows


def thread_counts(cores: int) -> list[int]:
    """What llama.cpp is measured with where ours uses `cores`."""
    return sorted({max(cores - 1, 1), cores})
