"""An agent's session: how long every turn waits for its first token, beside the time that reading
only what is new takes.

    python -m benchmarks.agent_replay --quick
    python -m benchmarks.agent_replay --models grouped,window --accelerator cuda --cache 0.5

A system prompt with tools, then turns with a tool's result each; in the middle an earlier result is
replaced, so that the conversation continues from there. The floor of a turn is measured on a second
engine: the time to the first token of a prompt with as many new tokens behind a context of the same
length that it computed in the request before. Both engines take turns within every turn. `--evict`
lets other requests fill the KV cache between turns.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.agent_conversation import Continuation, Conversation, Script, random_tokens
from benchmarks.agent_report import OURS, TurnTimes, print_report, report
from benchmarks.engine_process import Engine, EngineProcess
from benchmarks.other_commit import built_package

DRIVER = "benchmarks.agent_process"
QUICK = {"system": 2_000, "turns": 6, "shortest": 60, "longest": 500, "answer": 12}
_WARM_TOKENS = 600  # more than a step has without an accelerator


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of attention, and the known model in whose shape it is measured."""

    shape: str
    layers: int = 8
    quick_layers: int = 2
    expert_dtype: str = "int4"


KINDS = {
    "grouped": Kind("qwen3-30b-a3b"),
    "latent": Kind("deepseek-v2-lite"),
    "window": Kind("gpt-oss-20b", expert_dtype="bf16"),  # the CPU has no kernel for its integers
    "linear": Kind("qwen3-next-80b-a3b", quick_layers=4),  # the fourth layer has full attention
}


@dataclass(frozen=True, slots=True)
class Eviction:
    """Requests that are answered between turns, and their tokens."""

    requests: int
    tokens: int


class Session(EngineProcess):
    def answer(self, prompt: Sequence[int], tokens: int, boundaries: Sequence[int] = ()) -> Any:
        asked = {"prompt": list(prompt), "answer": tokens, "boundaries": list(boundaries)}
        found = self.ask({"requests": [asked]})
        return {**found["answers"][0], "cpu_ms": found["cpu_ms"]}

    def warm_up(self) -> None:
        """A prompt of two steps, if the context has room for it."""
        random, answer = np.random.default_rng(0), 4
        tokens = min(_WARM_TOKENS, self.options["context"] - answer)
        self.answer(random_tokens(random, self.options["vocabulary"], tokens), answer)

    def evict(self, eviction: Eviction, random: np.random.Generator) -> None:
        prompts = [
            random_tokens(random, self.options["vocabulary"], eviction.tokens)
            for _ in range(eviction.requests)
        ]
        self.ask({"requests": [{"prompt": prompt, "answer": 1} for prompt in prompts]})


class Replay:
    """One round: the conversation with every engine, and its floor."""

    def __init__(
        self,
        script: Script,
        engines: dict[str, Session],
        floor: Session,
        eviction: Eviction | None,
        seed: int,
    ) -> None:
        vocabulary = floor.options["vocabulary"]
        self._turns = script.draw()
        self._engines, self._floor = engines, floor
        self._talks = {name: Conversation(script, vocabulary, seed) for name in engines}
        self._continuation = Continuation(vocabulary, seed + 1)
        self._eviction, self._random = eviction, np.random.default_rng(seed + 2)

    def run(self) -> list[dict[str, TurnTimes]]:
        """By engine, turn after turn. The floor comes first in every other turn."""
        return [self._turn(number) for number in range(len(self._turns))]

    def _turn(self, number: int) -> dict[str, TurnTimes]:
        turn = self._turns[number]
        prompts = {name: talk.prompt(turn) for name, talk in self._talks.items()}
        known, new = prompts[OURS].known, prompts[OURS].new
        before = self._continuation.context(known)
        if before:
            self._floor.answer(before, 1)
        floor: dict[str, Any] = {}
        answers: dict[str, Any] = {}
        if number % 2:
            floor = self._least(new, turn.answer)
        for name, engine in self._engines.items():
            prompt = prompts[name]
            answers[name] = engine.answer(prompt.tokens, turn.answer, prompt.boundaries)
            self._talks[name].answered(prompt, answers[name]["tokens"])
            if self._eviction is not None:
                engine.evict(self._eviction, self._random)
        floor = floor or self._least(new, turn.answer)
        return {
            name: TurnTimes(
                prompt=len(prompts[name].tokens),
                known=prompts[name].known,
                cached=answer["cached"],
                ttft_ms=answer["ttft_ms"],
                floor_ms=floor["ttft_ms"],
                cpu_ratio=answer["cpu_ms"] / floor["cpu_ms"],
                floor_cached=floor["cached"],
                edited=turn.edited is not None,
            )
            for name, answer in answers.items()
        }

    def _least(self, new: int, tokens: int) -> dict[str, Any]:
        prompt = self._continuation.prompt(new)
        found: dict[str, Any] = self._floor.answer(prompt, tokens)
        self._continuation.answered(prompt, found["tokens"])
        return found


def replay_kind(kind: Kind, options: argparse.Namespace) -> dict[str, Any]:
    script = script_of(options)
    layers = options.layers or (kind.quick_layers if options.quick else kind.layers)
    settings = settings_of(options, kind, script)
    engine = Engine("", kind.shape, layers, settings)
    packages: dict[str, Path | None] = {OURS: None}
    if options.against_commit:
        packages[options.against_commit] = built_package(options.against_commit)
    with ExitStack() as stack:

        def opened(package: Path | None) -> Session:
            session = stack.enter_context(closing(Session(DRIVER, engine, package)))
            session.warm_up()
            return session

        engines = {name: opened(package) for name, package in packages.items()}
        floor = opened(None)
        rounds = []
        for number in range(options.rounds):
            seed = options.seed + 10 * number
            rounds.append(Replay(script, engines, floor, options.evict, seed).run())
            print(f"{kind.shape}: round {number + 1} done", file=sys.stderr, flush=True)
        used = {name: session.options for name, session in engines.items()}
    return {"engine": asdict(engine), "options": used, "rounds": rounds}


def script_of(options: argparse.Namespace) -> Script:
    sizes = dict(QUICK) if options.quick else {}
    given = {"system": options.system_tokens, "turns": options.turns, "answer": options.answer}
    sizes |= {name: value for name, value in given.items() if value is not None}
    if options.results:
        sizes["shortest"], sizes["longest"] = options.results
    return Script(**sizes, seed=options.seed)


def settings_of(options: argparse.Namespace, kind: Kind, script: Script) -> dict[str, Any]:
    found: dict[str, Any] = {
        "expert_dtype": kind.expert_dtype,
        "dense_dtype": "int4" if kind.expert_dtype == "int4" else "auto",
        "max_model_len": script.longest_context,
    }
    for name in ("accelerator", "threads", "max_sequences"):
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


def _pair(text: str) -> tuple[int, int]:
    first, second = text.split(",")
    return int(first), int(second)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--models", type=lambda text: text.split(","), default=list(KINDS),
        help=", ".join(f"{name}: {kind.shape}" for name, kind in KINDS.items()))  # fmt: skip
    add("--layers", type=int, help="of every model; without it a few")
    add("--system-tokens", type=int, help="16000")
    add("--turns", type=int, help="20")
    add("--results", type=_pair, help="SHORTEST,LONGEST tokens of a tool's result: 500,4000")
    add("--answer", type=int, help="tokens of an answer, in the mean: 100")
    add("--quick", action="store_true", help="sizes for two cores: " + json.dumps(QUICK))
    add("--rounds", type=int, default=3)
    add("--seed", type=int, default=0)
    add("--evict", type=lambda text: Eviction(*_pair(text)), metavar="REQUESTS,TOKENS",
        help="so many others of so many tokens are answered after every turn")  # fmt: skip
    add("--accelerator")
    add("--cache", type=float, help="share of the experts on the accelerator")
    add("--threads", type=int)
    add("--max-sequences", type=int)
    add("--option", action="append", default=[], metavar="NAME=VALUE", help="any other setting")
    add("--against-commit", metavar="COMMIT", help="or a folder with its built package")
    add("--json", type=Path, help="a file for everything that was measured")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.models if name not in KINDS]
    if unknown:
        parser.error(f"--models are of {', '.join(KINDS)}, not {unknown[0]}")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    result = report({name: replay_kind(KINDS[name], options) for name in options.models})
    if options.json:
        options.json.write_text(json.dumps(result, indent=1))
    print_report(result)


if __name__ == "__main__":
    main()
