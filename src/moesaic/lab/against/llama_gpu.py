"""`llama-bench` with a GPU, as people run it today: all attention there, and the experts of as many
last layers as ours had slots for (`--n-cpu-moe`)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from moesaic.hardware.host import usable_cores
from moesaic.lab.against.llama_cpp import LlamaCpp
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.stock_peer import PeerRow

_EVERY_LAYER = "99"


def gpu_arguments(config: BenchConfig, cases: Sequence[Case]) -> tuple[str, ...]:
    """Prompts are read in one piece, as ours are: it brings every expert once per piece."""
    longest = max((case.tokens for case in cases if case.phase == "prefill"), default=0)
    piece = str(min(max(longest, 1), config.settings.step_tokens))
    batches = ("-b", piece, "-ub", piece) if longest else ()
    return ("-ngl", _EVERY_LAYER, "-ncmoe", str(layers_on_cpu(config)), *batches)


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
    config: BenchConfig,
    cases: Sequence[Case],
    repetitions: int,
) -> list[PeerRow]:
    """Tests of several sequences are left out. One thread less than there are cores: its threads
    spin, and one core drives the GPU."""
    single = tuple(case for case in cases if case.batch == 1)
    threads = max((config.settings.threads or usable_cores()) - 1, 1)
    arguments = gpu_arguments(config, single)
    program_on_gpu = LlamaCpp(program, gguf, kind, threads, single, arguments)
    turns = [program_on_gpu.turn() for _ in range(repetitions)]
    words = f"{kind}, {' '.join(arguments)} -t {threads}"
    rows = []
    for case in single:
        rates = [turn[case.name] for turn in turns]
        spread = stdev(rates) if len(rates) > 1 else None
        share = config.plan.cache_ratio
        rows.append(PeerRow(LlamaCpp.name, case.name, share, mean(rates), spread, words))
    return rows
