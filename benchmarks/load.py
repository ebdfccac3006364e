"""The engine under load: many requests at once, or arriving one after another.

    python -m benchmarks.load --model bundled --requests 1,8,64
    python -m benchmarks.load --shape qwen3-30b-a3b --layers 2 --against-commit COMMIT --rounds 5
    python -m benchmarks.load --shape qwen3-30b-a3b --layers 2 --fixed 512,128 \\
        --against llama-batched-bench=PATH

Every request is a client of one `AsyncLLM` with its own stream. Reported are tokens per second
until the last token, the time to a request's first token (TTFT, from the moment it was due) and per
further token (TPOT), memory, and the engine's statistics. Contenders run in turns, each in a
process of its own that is idle during the others' turns, in the reverse order every other round;
ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from benchmarks.engine_process import Engine, EngineProcess
from benchmarks.load_llama import LlamaBatched, architecture_of, find_batched, write_model
from benchmarks.load_report import OURS, Round, print_report, report
from benchmarks.load_workload import (
    ANSWERS,
    PROMPTS,
    QUICK_ANSWERS,
    QUICK_PROMPTS,
    Lengths,
    Workload,
)
from benchmarks.open_engine import BUNDLED
from benchmarks.other_commit import built_package
from moesaic.core.folders import temporary_folder
from moesaic.hardware.host import usable_cores
from moesaic.lab.against.llama_batched import PROGRAM as LLAMA

INTEGERS = {"expert_dtype": "int4", "dense_dtype": "int4"}
LEAST_REQUESTS = 16  # of a turn: fewer at a time are measured in several batches
DRIVER = "benchmarks.load_process"
_GGUF = "moesaic-gguf-"  # folders of killed processes that begin so are removed


class Contender(Protocol):
    @property
    def options(self) -> dict[str, Any]:
        """Those in use."""

    def turn(self, work: Workload) -> dict[str, Any]: ...


def take_turns(
    contenders: dict[str, Contender], workloads: Sequence[Workload], rounds: int
) -> list[Round]:
    """Every contender with one workload before the next workload."""
    done = []
    for number in range(rounds):
        for work in workloads:
            names = list(contenders) if number % 2 == 0 else list(contenders)[::-1]
            found = {}
            for name in names:
                found[name] = contenders[name].turn(work.in_round(number))
                rate = found[name]["output_tok_s"]
                where = f"round {number + 1}, {work.requests} requests"
                print(f"{where}: {name} {rate:.1f} tokens/s", file=sys.stderr, flush=True)
            done.append(Round(work.requests, {name: found[name] for name in contenders}))
    return done


class LoadedEngine(EngineProcess):
    def turn(self, work: Workload) -> dict[str, Any]:
        return self.ask(asdict(work))


def contenders_of(
    options: argparse.Namespace, engine: Engine, stack: ExitStack
) -> dict[str, Contender]:
    packages: dict[str, Path | None] = {OURS: None}
    if options.against_commit:
        packages[options.against_commit] = built_package(options.against_commit)
    found: dict[str, Contender] = {}
    for name, package in packages.items():
        found[name] = stack.enter_context(closing(LoadedEngine(DRIVER, engine, package)))
    if options.against:
        name, _, path = options.against.partition("=")
        if name != LLAMA:
            raise SystemExit(f"--against is {LLAMA} or {LLAMA}=PATH, not {options.against}")
        program, folder = find_batched(path), stack.enter_context(temporary_folder(_GGUF))
        architecture = architecture_of(options.model, options.shape, options.layers)
        dtype = engine.options.get("expert_dtype", INTEGERS["expert_dtype"])
        gguf = write_model(architecture, dtype, folder)
        cache = engine.options.get("cache_ratio") if options.accelerator == "cuda" else None
        threads = options.threads or usable_cores()
        layers = architecture.spec.num_layers
        found[LLAMA] = LlamaBatched(program, gguf, layers, threads, cache)
    return found


def workloads_of(options: argparse.Namespace) -> list[Workload]:
    prompts, answers = (QUICK_PROMPTS, QUICK_ANSWERS) if options.quick else (PROMPTS, ANSWERS)
    if options.fixed:
        prompts, answers = map(Lengths.fixed, options.fixed)
    elif options.against:
        prompts, answers = (Lengths.fixed(lengths.mean()) for lengths in (prompts, answers))
        print(f"all lengths are the distribution's means for {LLAMA}", file=sys.stderr)
    return [
        Workload(count, prompts, answers, options.shared_prefix, options.prefix_tokens,
                 options.rate, options.seed, batches=-(-LEAST_REQUESTS // count))
        for count in options.requests
    ]  # fmt: skip


def settings_of(options: argparse.Namespace) -> dict[str, Any]:
    """Fields of the engine's settings that were asked for; the others are each side's defaults."""
    found: dict[str, Any] = dict(INTEGERS) if options.shape else {}
    for name in ("accelerator", "threads", "max_sequences", "max_model_len", "max_step_tokens"):
        if getattr(options, name) is not None:
            found[name] = getattr(options, name)
    if options.cache is not None:
        found["cache_ratio"] = options.cache
    for given in options.option:
        name, _, value = given.partition("=")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found


def whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--requests", type=whole_numbers, default=[1, 8, 64, 256])
    add("--rate", type=float, help="arrivals per second; without it all arrive at once")
    add("--shared-prefix", type=float, default=0.0, help="share of prompts that begin alike")
    add("--prefix-tokens", type=int, default=128, help="how much of them")
    add("--fixed", type=whole_numbers, help="PROMPT,ANSWER: one length for all")
    add("--quick", action="store_true", help="short prompts and answers")
    add("--seed", type=int, default=0)
    add("--rounds", type=int, default=3)
    add("--model", default=BUNDLED, help=f"a checkpoint's folder, or {BUNDLED}")
    add("--shape", help="random weights of a known model's shape or a config.json instead")
    add("--layers", type=int, help="of the shape, the first ones")
    add("--accelerator")
    add("--cache", type=float, help="share of the experts on the accelerator")
    add("--threads", type=int)
    add("--max-sequences", type=int)
    add("--max-model-len", type=int)
    add("--max-step-tokens", type=int)
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="any other setting; "
        "a commit without it runs without it")  # fmt: skip
    add("--against-commit", metavar="COMMIT", help="or a folder with its built package")
    add("--against", metavar=f"{LLAMA}[=PATH]")
    add("--json", type=Path, help="a file for everything that was measured")
    options = parser.parse_args(arguments)
    if options.model != BUNDLED and options.shape:
        parser.error("give --model or --shape")
    if options.fixed and len(options.fixed) != 2:
        parser.error("--fixed is PROMPT,ANSWER, as in 512,128")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    workloads, settings = workloads_of(options), settings_of(options)
    engine = Engine(options.model, options.shape, options.layers, settings)
    with ExitStack() as stack:
        contenders = contenders_of(options, engine, stack)
        rounds = take_turns(contenders, workloads, options.rounds)
        used = {name: each.options for name, each in contenders.items()}
    result = report(rounds, asdict(engine), [asdict(work) for work in workloads], used)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    print_report(result)


if __name__ == "__main__":
    main()
