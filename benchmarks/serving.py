"""Servers beside each other: `moesaic serve`, llama.cpp's `llama-server`, and the engine without
HTTP, on one file of random weights.

    python -m benchmarks.serving clients --quick
    python -m benchmarks.serving clients --shape qwen3-30b-a3b --layers 4 --against PATH --direct
    python -m benchmarks.serving replay --shape qwen3-30b-a3b --layers 2 --against PATH

`clients`: so many clients at once, each of which reads its stream; tokens/s, time to the first
token and per further token. `--direct` measures the engine without the server in front, and so what
the server adds to a token. `replay`: an agent's session, whose whole conversation is sent in every
turn; time to the first token of every turn, with and without the prefix cache, beside the time that
reading only what is new takes. All get the same requests, by token ids, and take turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.load import Contender, take_turns
from benchmarks.load_llama import architecture_of
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
from benchmarks.served_model import NOT_WRITTEN, write_served_model
from benchmarks.server_process import moesaic_server
from benchmarks.serving_contenders import (
    DIRECT,
    LLAMA,
    DirectContender,
    HttpContender,
    llama_server,
)
from benchmarks.serving_replay import context_of, print_replay, replay
from moesaic import AsyncLLM
from moesaic.core.folders import temporary_folder
from moesaic.hardware.host import usable_cores
from moesaic.models.configs.architecture import Architecture

_GGUF = "moesaic-gguf-"  # folders of killed processes that begin so are removed
_QUICK_CONTEXT, _CONTEXT = 512, 2560


class Setting:
    """What is opened, and how."""

    def __init__(self, options: argparse.Namespace, context: int, stack: ExitStack) -> None:
        """Random weights have any context that is asked for."""
        self.options, self.stack = options, stack
        made = architecture_of(BUNDLED, options.shape, options.layers)
        spec = replace(made.spec, max_context=max(made.spec.max_context, context))
        self.architecture: Architecture = replace(made, spec=spec)
        folder = stack.enter_context(temporary_folder(_GGUF))
        self.model = write_served_model(self.architecture, options.dtype, folder)
        self.threads = options.threads or usable_cores()
        self.gpu = options.accelerator == "cuda"

    @property
    def vocabulary(self) -> int:
        """Token ids that prompts may have."""
        return self.architecture.spec.vocab_size - NOT_WRITTEN - 1

    def ours(self, sequences: int, context: int, *more: str) -> HttpContender:
        fields = self.engine_options(sequences, context)
        given = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
        command = [self.model, *given, "--max-queue=4096", *more]
        server = moesaic_server(command, self.gpu)
        self.stack.enter_context(closing(server))
        shown = {"options": " ".join([*given, *more])}
        return HttpContender(server, self.vocabulary, context, shown)

    def direct(self, sequences: int, context: int) -> DirectContender:
        fields = self.engine_options(sequences, context)
        llm = AsyncLLM(self.model, process=True, **fields)
        self.stack.callback(lambda: asyncio.run(llm.close()))
        return DirectContender(llm, self.vocabulary, context, {"options": "AsyncLLM(process=True)"})

    def llama(self, sequences: int, context: int) -> HttpContender:
        layers, placement = self.architecture.spec.num_layers, ["-ngl", "0"]
        if self.gpu:
            on_cpu = layers - round(self.options.cache * layers)
            placement = ["-ngl", "99", "-ncmoe", str(on_cpu)]
        program = self.options.against
        server = llama_server(program, self.model, sequences, context, self.threads, placement)
        self.stack.enter_context(closing(server))
        shown = {"options": " ".join(server.command[5:])}
        return HttpContender(server, self.vocabulary, context, shown)

    def engine_options(self, sequences: int, context: int) -> dict[str, Any]:
        options = self.options
        found: dict[str, Any] = {
            "expert_dtype": options.dtype,
            "dense_dtype": options.dtype,
            "accelerator": options.accelerator,
            "threads": self.threads,
            "max_sequences": sequences,
            "max_model_len": context,
        }
        return found | ({"cache_ratio": options.cache} if self.gpu else {})


def clients(options: argparse.Namespace) -> dict[str, Any]:
    context = _QUICK_CONTEXT if options.quick else _CONTEXT
    works = workloads_of(options)
    if options.fixed:
        context = sum(options.fixed) + 16
    with ExitStack() as stack:
        setting = Setting(options, context, stack)
        sequences = max(options.requests)
        found: dict[str, Contender] = {OURS: setting.ours(sequences, context)}
        if options.direct:
            found[DIRECT] = setting.direct(sequences, context)
        if options.against:
            found[LLAMA] = setting.llama(sequences, context)
        rounds = take_turns(found, works, options.rounds)
        used = {name: each.options for name, each in found.items()}
    model = {"shape": options.shape, "layers": options.layers, "dtype": options.dtype}
    result = report(rounds, model, [{"requests": each.requests} for each in works], used)
    return result | {"command": command(), "front": front_rows(rounds)}


def workloads_of(options: argparse.Namespace) -> list[Workload]:
    prompts, answers = (QUICK_PROMPTS, QUICK_ANSWERS) if options.quick else (PROMPTS, ANSWERS)
    if options.fixed:
        prompts, answers = map(Lengths.fixed, options.fixed)
    least = max(1, options.least)
    return [
        Workload(count, prompts, answers, seed=options.seed, batches=-(-least // count))
        for count in options.requests
    ]


def front_rows(rounds: Sequence[Round]) -> list[dict[str, Any]]:
    """What the server in front adds to a token: by the clock of the clients, and in processor time
    of its own process."""
    rows = []
    for count in dict.fromkeys(each.requests for each in rounds):
        found = [each.found for each in rounds if each.requests == count]
        spent = median(each[OURS]["front_cpu_ms_token"] for each in found)
        row: dict[str, Any] = {"requests": count, "front_cpu_ms_token": spent}
        if DIRECT in found[0]:
            tpot = [(f[OURS]["tpot_ms"], f[DIRECT]["tpot_ms"]) for f in found]
            row["added_ms"] = [ours["p50"] - direct["p50"] for ours, direct in tpot if ours]
        rows.append(row)
    return rows


def print_front(rows: Sequence[dict[str, Any]]) -> None:
    for row in rows:
        words = f"{row['front_cpu_ms_token']:.3f} ms of processor time per token in front"
        if added := row.get("added_ms"):
            rounds = ", ".join(f"{each:.2f}" for each in added)
            words += f"; the front adds {median(added):.2f} ms to a token (rounds: {rounds})"
        print(f"{row['requests']} clients: {words}")


def command() -> list[str]:
    return ["python", "-m", "benchmarks.serving", *sys.argv[1:]]


def whole_numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def program(text: str) -> Path:
    """The program, or a folder with it."""
    given = Path(text).expanduser()
    for one in (given, given / LLAMA, given / "bin" / LLAMA, given / "build" / "bin" / LLAMA):
        if one.is_file():
            return one.absolute()
    raise argparse.ArgumentTypeError(f"there is no {LLAMA} at {text}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    for name in ("clients", "replay"):
        add = parts.add_parser(name).add_argument
        add("--shape", default="moesaic-20m", help="a known model's, or a config.json")
        add("--layers", type=int, help="of the shape, the first ones")
        add("--dtype", default="int4", help="of all matrices: int4, int8 or bf16")
        add("--accelerator", default="none")
        add("--cache", type=float, default=0.5, help="share of the experts on the accelerator")
        add("--threads", type=int)
        add("--against", type=program, help=f"{LLAMA}, or its folder")
        add("--rounds", type=int, default=3 if name == "clients" else 1)
        add("--quick", action="store_true", help="short prompts and answers")
        add("--seed", type=int, default=0)
        add("--json", type=Path, help="a file for everything that was measured")
        if name == "clients":
            add("--requests", type=whole_numbers, default=[1, 8, 64], help="clients at once")
            add("--least", type=int, default=16, help="requests in a turn: fewer clients ask again")
            add("--fixed", type=whole_numbers, help="PROMPT,ANSWER: one length for all")
            add("--direct", action="store_true", help="the engine without HTTP, too")
        else:
            add("--system-tokens", type=int, help="16000")
            add("--turns", type=int, help="20")
            add("--results", type=whole_numbers, help="SHORTEST,LONGEST: 500,4000")
            add("--answer", type=int, help="tokens of an answer, in the mean: 100")
            add("--uncached", type=int, default=3, help="so many turns without the cache, too")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.part == "clients":
        result = clients(options)
        print_report(result)
        print_front(result["front"])
    else:
        with ExitStack() as stack:
            setting = Setting(options, context_of(options), stack)
            result = replay(options, setting) | {"command": command()}
        print_replay(result)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
