"""Many clients before `moesaic serve` for minutes, as they are: some leave in the middle of an
answer, some send what is no request.

    python -m benchmarks.soak --seconds 300 --clients 64
    python -m benchmarks.soak --seconds 300 --not-invariant

Every question has been asked alone before, so that each answer is known: none may be lost, cut or
another client's, and with `--batch-invariant`, which is the default here, none may differ. Memory
of both processes has to stay flat, and at the end the server answers as at the beginning. The exit
status is 1 if something of this is not so."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from benchmarks.http_exchange import Exchange, exchange, raw_exchange
from benchmarks.server_process import ServerProcess, moesaic_server, resident_bytes
from benchmarks.soak_requests import Question, Refusal, Said, questions, refusals, said

_MB = 1_000_000
QUESTIONS = 120
_LEAVING, _REFUSED = 0.2, 0.1  # shares of the requests
_PATIENCE_S = 60.0  # for one answer, and for the end
_HALF_SENT_S = 0.5  # after which a client that has sent half a request goes
_SAMPLE_S = 1.0
_GROWTH, _GROWTH_BYTES = 0.05, 24 * _MB  # more than both is not flat


@dataclass
class Found:
    answers: int = 0
    left: int = 0
    refused: int = 0
    differing: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)  # statuses of refusals, and differences
    memory: list[tuple[float, int, int]] = field(default_factory=list)  # seconds, front, engine
    statuses: Counter[int | None] = field(default_factory=Counter)


class Soak:
    def __init__(self, server: ServerProcess, invariant: bool, questioned: int) -> None:
        self._server, self._invariant = server, invariant
        self._questions, self._refusals = questions(questioned), refusals()
        self._alone: dict[int, Said] = {}
        self.found = Found()

    async def run(self, clients: int, seconds: float) -> Found:
        for number, question in enumerate(self._questions):
            answer = said(question, await self._ask(question))
            if answer is None:
                raise SystemExit(f"question {number} has no answer alone: {question}")
            self._alone[number] = answer
        begin = monotonic()
        watching = asyncio.create_task(self._watch(begin))
        await asyncio.gather(*(self._client(each, begin + seconds) for each in range(clients)))
        watching.cancel()
        await self._end()
        return self.found

    async def _client(self, number: int, end: float) -> None:
        """One request after another, of any kind."""
        rng = random.Random(f"client {number}")
        while monotonic() < end:
            kind, place = rng.random(), rng.randrange(len(self._questions))
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    if kind < _LEAVING:
                        await self._leave(self._questions[place], rng)
                    elif kind < _LEAVING + _REFUSED:
                        await self._refuse(rng.choice(self._refusals))
                    else:
                        await self._answer(place)
            except TimeoutError:
                self.found.lost.append(
                    f"nothing for {_PATIENCE_S:g} s: question {place}, {kind:.2f}"
                )
            except OSError as error:
                self.found.lost.append(f"{type(error).__name__}: {error}")

    async def _answer(self, place: int) -> None:
        question, alone = self._questions[place], self._alone[place]
        found = await self._ask(question)
        answer, known = said(question, found), self.found
        known.statuses[found.status] += 1
        known.answers += 1
        if answer is None:
            known.lost.append(f"question {place}: {bytes(found.raw[:300])!r}")
        elif answer != alone:
            known.differing += 1
            if self._invariant:
                known.wrong.append(f"question {place}: {answer}, alone {alone}")

    async def _leave(self, question: Question, rng: random.Random) -> None:
        """After some of the answer, or before any of it."""
        pieces = rng.randrange(6)
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.uniform(0.01, 1.0)):
                await self._ask(question, pieces)
        self.found.left += 1

    async def _refuse(self, refusal: Refusal) -> None:
        status: int | None = None
        with suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_HALF_SENT_S if None in refusal.right else _PATIENCE_S / 2):
                status = (await raw_exchange(self._server.address, refusal.data)).status
        self.found.refused += 1
        self.found.statuses[status] += 1
        if status not in refusal.right:
            self.found.wrong.append(f"{refusal.data[:80]!r}: {status}, right is {refusal.right}")

    async def _ask(self, question: Question, pieces: int | None = None) -> Exchange:
        def leave(found: Exchange) -> bool:
            return pieces is not None and len(found.arrived) > pieces

        return await exchange(self._server.address, question.path, question.body, leave)

    async def _watch(self, begin: float) -> None:
        """Memory, until it is cancelled."""
        while True:
            engine = self._server.engine_pid()
            front = resident_bytes(self._server.pid)
            sample = (monotonic() - begin, front, 0 if engine is None else resident_bytes(engine))
            self.found.memory.append(sample)
            await asyncio.sleep(_SAMPLE_S)

    async def _end(self) -> None:
        """Nothing is left in the server, and it answers as before."""
        end, slots, running = monotonic() + _PATIENCE_S, None, "?"
        while monotonic() < end and (slots != [] or running != "0"):
            slots = (await exchange(self._server.address, "/slots")).json()
            text = (await exchange(self._server.address, "/metrics")).body().decode()
            lines = [line.split() for line in text.splitlines() if line[:1] != "#"]
            running = dict(lines)["moesaic_requests_running"]
        if slots != [] or running != "0":
            self.found.wrong.append(f"at the end {running} requests run, slots: {slots}")
        for place in (0, 1, 2):
            answer = said(self._questions[place], await self._ask(self._questions[place]))
            if answer != self._alone[place]:
                self.found.wrong.append(f"at the end, question {place}: {answer}")
        if "Traceback" in (log := self._server.log()):
            self.found.wrong.append(f"in the log: {log[log.index('Traceback') :][:1000]}")


def soak(
    clients: int,
    seconds: float,
    invariant: bool = True,
    threads: int | None = None,
    questioned: int = QUESTIONS,
) -> Found:
    """`questioned`: so many different questions, each of which is asked alone first."""
    options = ["--max-sequences", clients, "--max-model-len", 256, "--max-body-mb", 0.1]
    options += ["--accelerator", "none", *(("--threads", threads) if threads else ())]
    options += ["--batch-invariant"] if invariant else []
    with closing(moesaic_server(options)) as server:
        return asyncio.run(Soak(server, invariant, questioned).run(clients, seconds))


def growth(found: Found) -> dict[str, tuple[int, int]]:
    """Bytes of each process from a third of the time on: the medians of the first and the last
    third of what follows."""
    last = found.memory[-1][0]
    rest = [each for each in found.memory if each[0] >= last / 3]
    part = max(1, len(rest) // 3)
    first, final = rest[:part], rest[-part:]
    return {
        name: (int(median(e[place] for e in first)), int(median(e[place] for e in final)))
        for place, name in ((1, "front"), (2, "engine"))
    }


def complaints(found: Found) -> list[str]:
    """Memory is judged where there was time for it to be flat."""
    made = [f"lost: {each}" for each in found.lost] + [f"wrong: {each}" for each in found.wrong]
    for name, (before, after) in growth(found).items():
        if after - before > max(_GROWTH * before, _GROWTH_BYTES):
            made.append(
                f"memory of the {name} grew from {before / _MB:.0f} to {after / _MB:.0f} MB"
            )
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--seconds", type=float, default=300)
    add("--clients", type=int, default=64)
    add("--threads", type=int)
    add("--not-invariant", action="store_true", help="answers may differ; their share is printed")
    add("--json", type=Path, help="a file for everything that was found")
    options = parser.parse_args(arguments)
    found = soak(options.clients, options.seconds, not options.not_invariant, options.threads)
    made = complaints(found)
    share = found.differing / max(found.answers, 1)
    print(
        f"{found.answers} answers, {found.left} clients left, {found.refused} requests refused; "
        f"{found.differing} answers ({share:.2%}) differ from those alone"
    )
    for name, (before, after) in growth(found).items():
        print(f"memory of the {name}: {before / _MB:.0f} MB, at the end {after / _MB:.0f} MB")
    for each in made[:50]:
        print(each)
    print(f"{len(made)} complaints")
    if options.json:
        shown: dict[str, Any] = asdict(found) | {"statuses": list(found.statuses.items())}
        options.json.write_text(json.dumps(shown, indent=1))
    return 1 if made else 0


if __name__ == "__main__":
    sys.exit(main())
