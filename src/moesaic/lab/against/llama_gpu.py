"""`llama-bench` with a GPU, as people run it today: all attention there, and the experts of as many
last layers as ours had slots for (`--n-cpu-moe`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from moesaic.hardware.host import usable_cores
from moesaic.lab.against.llama_cpp import NAME, command, rates_of, run_program
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.stock_peer import PeerRow

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
