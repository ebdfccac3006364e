"""A run: steps, evaluations and checkpoints until it is complete, or its time is over."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moesaic.core.errors import ImpossibleSetting
from training.batches import DataPosition, Mixture
from training.checkpoint import Checkpoint, has_checkpoint, read_checkpoint
from training.examination import Examination
from training.fast_paths import Paths, find_paths
from training.losses import Losses
from training.network import Network
from training.optimiser import Optimisers, Plan, rate_factor
from training.packing import Rows
from training.problem_rows import ShardMaker
from training.prose_rows import TRAINING_PROSE, ProseRows
from training.recipe import Recipe
from training.shards import ShardStream
from training.step import Batch, Trainer, to_device
from training.token_file import read_tokens

_LOG_EVERY = 20  # steps; reading a loss waits for the device
_WARM_AGAIN = 50  # steps, where optimisers were left behind
_SPARE_SECONDS = 20.0  # kept of the time of a call for the last evaluation and checkpoint


@dataclass(frozen=True, slots=True)
class Request:
    recipe: Recipe
    prepared: Path
    run: Path
    resume: bool = False
    minutes: float | None = None
    planned_minutes: float | None = None
    workers: int = 0
    device: str | None = None
    compiled: bool = False


def train(request: Request) -> None:
    began = time.monotonic()
    start = _start(request)
    recipe = start.recipe
    maker = ShardMaker(
        str(request.prepared),
        recipe.shape.context,
        recipe.data.shard_problems,
        round(100 * recipe.data.question_weight),
        recipe.run.seed,
    )
    prose = ProseRows(
        read_tokens(request.prepared / TRAINING_PROSE), recipe.shape.context, recipe.run.seed
    )
    with ShardStream(maker, request.workers, start.position.problems) as problems:
        mixture = Mixture(recipe.data, prose, problems, start.position)
        _Run(request, start, mixture, began).go()


def _start(request: Request) -> Checkpoint:
    if request.resume and has_checkpoint(request.run):
        found = read_checkpoint(request.run)
        if found.recipe.shape != request.recipe.shape:
            raise ImpossibleSetting(
                f"the checkpoint in {str(request.run)!r} has another shape than the recipe: "
                "resume with the recipe it was made with, or name another folder."
            )
        return Checkpoint(
            request.recipe,
            found.weights,
            found.optimisers,
            found.step,
            found.seconds,
            found.position,
        )
    if has_checkpoint(request.run):
        raise ImpossibleSetting(
            f"{str(request.run)!r} holds a checkpoint: go on with --resume, or name another folder."
        )
    return Checkpoint(request.recipe, {}, None, position=DataPosition())


class _Run:
    def __init__(self, request: Request, start: Checkpoint, mixture: Mixture, began: float) -> None:
        self._recipe, self._folder, self._mixture = start.recipe, request.run, mixture
        self._log = RunLog(request.run)
        self._plan = Plan(start.recipe.run.steps, request.planned_minutes)
        self._ends = None if request.minutes is None else began + 60 * request.minutes
        self._step, self._seconds, self._first = start.step, start.seconds, start.step
        self._examined: tuple[int, dict[str, Any]] = (-1, {})
        self._cold = start.step > 0 and start.optimisers is None
        self._device = torch.device(
            request.device or ("cuda" if torch.cuda.is_available() else "cpu")
        )
        dtype = torch.bfloat16 if self._device.type == "cuda" else torch.float32
        self._paths = self._find_paths(dtype)
        self._network = _network(start, dtype, self._device, self._paths)
        self._optimisers = Optimisers(self._network, start.recipe.learning)
        if start.optimisers is not None:
            self._optimisers.load(start.optimisers)
        self._trainer = Trainer(self._network, self._optimisers, start.recipe)
        self._examination = Examination(
            request.prepared, request.prepared, start.recipe, self._paths.packed
        )
        self._position = start.position  # of the rows to learn from next
        self._next_rows = mixture.batch()
        if request.compiled:
            self._log.write("path", found=self._trainer.compile(self._batch(self._next_rows)))

    def _find_paths(self, dtype: torch.dtype) -> Paths:
        paths = find_paths(self._device, dtype)
        for note in paths.notes:
            self._log.write("path", found=note)
        return paths

    def go(self) -> None:
        run = self._recipe.run
        self._log.write(
            "start",
            step=self._step,
            parameters=self._recipe.shape.parameters,
            device=_device_name(self._device),
            torch=torch.__version__,
        )
        with _asked_to_stop() as stop:
            since, logged_at = time.monotonic(), self._step
            while not (stop or self._complete() or self._late()):
                batch = self._batch(self._next_rows)
                found = self._trainer.step(batch, self._rate_factor())
                self._step += 1
                self._position = self._mixture.position
                self._next_rows = self._mixture.batch()
                if self._step % _LOG_EVERY == 0:
                    self._log_step(found, since, self._step - logged_at)
                    logged_at, since = self._step, self._count_time(since)
                if self._step % run.checkpoint_every == 0:
                    since = self._count_time(since, found)
                    self._write()
                    since = time.monotonic()
                if self._step % run.evaluate_every == 0:
                    since = self._count_time(since, found)
                    self._examine()
                    since, logged_at = time.monotonic(), self._step
            self._count_time(since)
        self._write()
        self._finish()

    def _complete(self) -> bool:
        return self._plan.progress(self._step, self._seconds) >= 1

    def _late(self) -> bool:
        return self._ends is not None and time.monotonic() > self._ends - _SPARE_SECONDS

    def _batch(self, rows: Rows) -> Batch:
        per_row = self._recipe.data.documents_per_row
        return to_device(rows, self._device, self._paths.packed, per_row)

    def _rate_factor(self) -> float:
        factor = rate_factor(self._plan.progress(self._step, self._seconds), self._recipe.learning)
        if self._cold:
            factor *= min(1.0, (self._step - self._first + 1) / _WARM_AGAIN)
        return factor

    def _count_time(self, since: float, wait_for: Losses | None = None) -> float:
        """Add what has passed to the run's time; now."""
        if wait_for is not None:
            float(wait_for.total)
        now = time.monotonic()
        self._seconds += now - since
        return now

    def _log_step(self, found: Losses, since: float, steps: int) -> None:
        values = {name: round(float(value), 4) for name, value in found._asdict().items()}
        tokens = self._recipe.data.rows * self._recipe.shape.context
        rate = steps * tokens / (time.monotonic() - since)
        self._log.write(
            "step",
            step=self._step,
            progress=round(self._plan.progress(self._step, self._seconds), 4),
            tokens_per_s=round(rate),
            **values,
        )

    def _examine(self) -> dict[str, Any]:
        """Once per step: a run's end may fall on an evaluation."""
        if self._examined[0] == self._step:
            return self._examined[1]
        began = time.monotonic()
        report = self._examination.report(self._network, self._recipe.run.exact_problems)
        took = round(time.monotonic() - began, 1)
        self._log.write("evaluation", step=self._step, took_s=took, **report)
        self._examined = (self._step, report)
        return report

    def _write(self) -> None:
        Checkpoint(
            self._recipe,
            {name: value.detach() for name, value in self._network.named_parameters()},
            self._optimisers.state(),
            self._step,
            self._seconds,
            self._position,
        ).write(self._folder)

    def _finish(self) -> None:
        complete = self._complete()
        self._log.write("stop", step=self._step, seconds=round(self._seconds, 1), complete=complete)
        if not complete:
            return
        self._log.summarize(
            {
                "parameters": self._recipe.shape.parameters,
                "steps": self._step,
                "tokens": self._step * self._recipe.data.rows * self._recipe.shape.context,
                "training_seconds": round(self._seconds, 1),
                "device": _device_name(self._device),
                "recipe": self._recipe.as_dict(),
                **self._examine(),
                "continuations": self._examination.texts(self._network),
            }
        )


def _network(start: Checkpoint, dtype: torch.dtype, device: torch.device, paths: Paths) -> Network:
    torch.manual_seed(start.recipe.run.seed)
    network = Network(start.recipe.shape, dtype)
    if start.weights:
        network.load_state_dict(start.weights)
    network.use_product(paths.product)
    network.to(device)
    return network


def _device_name(device: torch.device) -> str:
    return str(torch.cuda.get_device_name(device)) if device.type == "cuda" else device.type


@contextmanager
def _asked_to_stop() -> Iterator[list[int]]:
    """Empty until a signal asks the run to end: it does so after the step at hand, in order."""
    asked: list[int] = []
    signals = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(one, lambda number, _: asked.append(number)) for one in signals]
    try:
        yield asked
    finally:
        for one, handler in zip(signals, before, strict=True):
            signal.signal(one, handler)


# A run's log: one JSON object per line, appended, and a short form for the terminal.

LOG, SUMMARY = "log.jsonl", "summary.json"


class RunLog:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder

    def write(self, event: str, **fields: Any) -> None:
        with (self._folder / LOG).open("a", encoding="utf-8") as stream:
            stream.write(json.dumps({"event": event, **fields}) + "\n")
        short = {name: value for name, value in fields.items() if not isinstance(value, list)}
        short.pop("exact_match", None)
        print(event, *(f"{name}={value}" for name, value in short.items()), flush=True)
        for name, value in fields.get("exact_match", {}).items():
            if name in ("full", "half"):
                print(f"  exact match, {name} top-k: {value}", flush=True)

    def summarize(self, content: dict[str, Any]) -> None:
        text = json.dumps(content, indent=1) + "\n"
        (self._folder / SUMMARY).write_text(text, encoding="utf-8")
