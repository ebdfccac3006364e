"""An engine in a process of its own that answers lines of JSON: the first one opens it, every
further one is measured. Between them it is idle, so that several take turns."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.open_engine import open_engine
from benchmarks.other_commit import ROOT, command_with
from moesaic.engine.async_llm import AsyncLLM
from moesaic.engine.input_processor import InputProcessor

_END_S = 30.0  # for closing an engine
USED = (
    "accelerator", "cache_ratio", "expert_dtype", "dense_dtype", "threads", "max_sequences",
    "max_model_len", "max_step_tokens", "prefix_cache",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Engine:
    """What is opened; `options` are fields of its settings."""

    model: str
    shape: str | None = None
    layers: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


class EngineProcess:
    """The caller's side. `module` is run with the package of another commit where one is given,
    which may lack what the caller's has."""

    def __init__(self, module: str, engine: Engine, package: Path | None = None) -> None:
        command = [sys.executable, "-X", "faulthandler", "-m", module]
        if package is not None:
            command = command_with([package, ROOT], module)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=ROOT)
        try:
            self.options = self.ask(asdict(engine))
        except BaseException:
            self.close()
            raise

    def ask(self, value: dict[str, Any]) -> dict[str, Any]:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None, "it is a pipe"
        assert answers is not None, "it is a pipe"
        with suppress(BrokenPipeError):  # then there is no answer either
            print(json.dumps(value), file=asked, flush=True)
        line = answers.readline()
        if not line:
            raise SystemExit(f"the engine's process ended with status {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        """The process ends when it is asked nothing more."""
        assert self._process.stdin is not None, "it is a pipe"
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


Measure = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


def answer_standard_input(begin: Callable[[AsyncLLM], Measure]) -> None:
    """The process's side. `begin` makes of an open engine what answers the further lines. Standard
    output is for replies alone: what libraries print goes to standard error."""
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def reply(value: dict[str, Any]) -> None:
        print(json.dumps(value, default=str), file=replies, flush=True)

    asyncio.run(_answer_lines(sys.stdin, begin, reply))


async def _answer_lines(
    lines: Iterable[str],
    begin: Callable[[AsyncLLM], Measure],
    reply: Callable[[dict[str, Any]], None],
) -> None:
    asked = iter(lines)
    engine = Engine(**json.loads(next(asked)))
    llm = open_engine(engine.model, engine.shape, engine.layers, engine.options)
    async with llm:
        reply(options_of(llm))
        measure = begin(llm)
        for line in asked:
            reply(await measure(json.loads(line)))


def options_of(llm: AsyncLLM) -> dict[str, Any]:
    """The options in use; `capacity` is the memory plan's, in whatever form this commit has it."""
    settings = llm.model.settings
    used = {name: getattr(settings, name, None) for name in (*USED, "step_tokens")}
    used = {name: value for name, value in used.items() if value is not None}
    return used | {
        "capacity": str(llm.model.plan.capacity),
        "vocabulary": llm.model.spec.vocab_size,
        "context": llm.model.plan.capacity.length,
        "takes_boundaries": takes_boundaries(),
    }


def takes_boundaries() -> bool:
    """Whether this commit is told where a prompt's messages end."""
    return "boundaries" in inspect.signature(InputProcessor.request).parameters
