"""An agent's session over HTTP, for `benchmarks.serving`: how long every turn waits for its first
token, beside the time that reading only what is new takes in the engine alone."""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import closing
from statistics import median
from typing import Any, Protocol

from benchmarks.agent_conversation import Continuation, Conversation, Prompt, Script, Turn
from benchmarks.agent_replay import DRIVER, QUICK, Session
from benchmarks.engine_process import Engine
from benchmarks.http_exchange import exchange
from benchmarks.load_report import OURS
from benchmarks.load_workload import Ask
from benchmarks.served_model import tokens_of
from benchmarks.serving_contenders import (
    LLAMA,
    HttpContender,
    body_of,
    cached_of,
    text_of,
    times_of,
)
from moesaic.cli.shared.output import print_table
from moesaic.hardware.host import usable_cores

UNCACHED = "no cache"
_WARM, _SPARE = 600, 16  # tokens


class Opener(Protocol):
    """What `benchmarks.serving` has made of its options."""

    model: Any
    stack: Any

    @property
    def vocabulary(self) -> int: ...
    def ours(self, sequences: int, context: int, *more: str) -> HttpContender: ...
    def llama(self, sequences: int, context: int) -> HttpContender: ...
    def engine_options(self, sequences: int, context: int) -> dict[str, Any]: ...


def replay(options: argparse.Namespace, setting: Opener) -> dict[str, Any]:
    script = script_of(options)
    context = context_of(options)
    servers = {OURS: setting.ours(2, context)}
    if options.uncached:
        servers[UNCACHED] = setting.ours(2, context, "--no-prefix-cache")
    if options.against:
        servers[LLAMA] = setting.llama(1, context)
    engine = Engine(str(setting.model), options=setting.engine_options(2, context))
    floor = setting.stack.enter_context(closing(Session(DRIVER, engine)))
    floor.warm_up()
    for each in servers.values():
        prompt = list(range(20, 20 + min(_WARM, context - 20)))
        asyncio.run(exchange(each.server.address, "/v1/completions", body_of(Ask(prompt, 4))))
    rounds = [
        Replay(script, servers, floor, options.uncached, options.seed + 10 * number).run()
        for number in range(options.rounds)
    ]
    used = {name: each.options for name, each in servers.items()}
    return {"cores": usable_cores(), "options": used, "turns": rows_of(rounds), "rounds": rounds}


def context_of(options: argparse.Namespace) -> int:
    return script_of(options).longest_context + _SPARE


def script_of(options: argparse.Namespace) -> Script:
    sizes = dict(QUICK) if options.quick else {}
    given = {"system": options.system_tokens, "turns": options.turns, "answer": options.answer}
    sizes |= {name: value for name, value in given.items() if value is not None}
    if options.results:
        sizes["shortest"], sizes["longest"] = options.results
    return Script(**sizes, seed=options.seed)


class Replay:
    """One round. What has no cache reads all in a few turns only, the last among them."""

    def __init__(
        self,
        script: Script,
        servers: dict[str, HttpContender],
        floor: Session,
        uncached: int,
        seed: int,
    ) -> None:
        vocabulary = servers[OURS].vocabulary
        self._turns, self._servers, self._floor = script.draw(), servers, floor
        talking = [name for name in servers if name != UNCACHED]
        self._talks = {name: Conversation(script, vocabulary, seed) for name in talking}
        self._continuation = Continuation(vocabulary, seed + 1)
        last = len(self._turns) - 1
        self._uncached = {round(last * (k + 1) / uncached) for k in range(uncached)}

    def run(self) -> list[dict[str, Any]]:
        return [self._turn(number, turn) for number, turn in enumerate(self._turns)]

    def _turn(self, number: int, turn: Turn) -> dict[str, Any]:
        prompts = {name: talk.prompt(turn) for name, talk in self._talks.items()}
        ours = prompts[OURS]
        found: dict[str, Any] = {
            "prompt": len(ours.tokens),
            "new": ours.new,
            "edited": turn.edited is not None,
            "floor_ms": self._least(ours, turn.answer),
        }
        for name in list(prompts) if number % 2 else list(prompts)[::-1]:
            found[name] = self._asked(name, prompts[name], turn.answer)
            self._talks[name].answered(prompts[name], found[name].pop("tokens"))
        if UNCACHED in self._servers and number in self._uncached:
            found[UNCACHED] = self._asked(UNCACHED, ours, 2)
            del found[UNCACHED]["tokens"]
        words = ", ".join(f"{name} {found[name]['ttft_ms']:.0f}" for name in prompts)
        print(f"turn {number}: floor {found['floor_ms']:.0f} ms, {words}", file=sys.stderr)
        return found

    def _least(self, prompt: Prompt, tokens: int) -> float:
        before = self._continuation.context(prompt.known)
        if before:
            self._floor.answer(before, 1)
        asked = self._continuation.prompt(prompt.new)
        found = self._floor.answer(asked, tokens)
        self._continuation.answered(asked, found["tokens"])
        return float(found["ttft_ms"])

    def _asked(self, name: str, prompt: Prompt, answer: int) -> dict[str, Any]:
        server = self._servers[name].server
        body = body_of(Ask(prompt.tokens, answer))
        found = asyncio.run(exchange(server.address, "/v1/completions", body))
        times = times_of(found, answer)
        if not times:
            raise SystemExit(f"{name}: status {found.status}, {bytes(found.raw[-500:])!r}")
        text = "".join(text_of(each.value()) for each in found.events())
        return {
            "ttft_ms": 1e3 * (times[0] - found.began),
            "cached": cached_of(found),
            "tokens": tokens_of(text),
        }


def rows_of(rounds: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Medians of every turn; lengths are equal in all rounds."""
    rows = []
    for found in zip(*rounds, strict=True):
        row = {name: found[0][name] for name in ("prompt", "new", "edited")}
        row["floor_ms"] = median(each["floor_ms"] for each in found)
        for name in (OURS, UNCACHED, LLAMA):
            if name in found[0]:
                row[name] = median(each[name]["ttft_ms"] for each in found)
                row[f"{name} cached"] = median(each[name]["cached"] or 0 for each in found)
        row["ratio"] = median(each[OURS]["ttft_ms"] / each["floor_ms"] for each in found)
        rows.append(row)
    return rows


def print_replay(result: dict[str, Any]) -> None:
    for name, options in result["options"].items():
        print(f"{name}: {options['options']}")
    print_table(
        f"Time to first token of every turn in ms, medians of {len(result['rounds'])} rounds; "
        "ratio: this over the floor",
        (
            *("turn", "prompt", "new", "floor", OURS, "ratio", "cached"),
            *(UNCACHED, LLAMA, "cached", ""),
        ),
        [
            [
                str(number),
                *(f"{row[name]:.0f}" for name in ("prompt", "new", "floor_ms", OURS)),
                f"{row['ratio']:.2f}",
                f"{row[f'{OURS} cached']:.0f}",
                *(_cell(row.get(name)) for name in (UNCACHED, LLAMA, f"{LLAMA} cached")),
                "edited" if row["edited"] else "",
            ]
            for number, row in enumerate(result["turns"])
        ],
    )


def _cell(value: float | None) -> str | None:
    return None if value is None else f"{value:.0f}"
