"""llama.cpp's `llama-batched-bench` beside `benchmarks.load`: prompts of one length that are read
together, then answers of one length. It has no arrivals and tells no request's own times."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.load_workload import Workload
from benchmarks.open_engine import BUNDLED
from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.against.llama_batched import PROGRAM
from moesaic.lab.against.program_runs import output_of
from moesaic.lab.against.random_gguf import check_writable, write_random_gguf
from moesaic.models.bundled_model import default_model
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.configs.synthetic_architecture import synthetic_architecture


@dataclass(frozen=True, slots=True)
class LlamaBatched:
    """`cache`: share of the layers whose experts are on the GPU; None: there is no GPU."""

    program: Path
    model: Path
    layers: int
    threads: int
    cache: float | None

    def command(self, work: Workload) -> list[str]:
        prompt, answer = work.prompts.median, work.answers.median
        context = work.requests * (prompt + answer)
        return [
            *(str(self.program), "-m", str(self.model), "-t", str(self.threads), "-fa", "on"),
            *self._placement(),
            *("-c", str(context), "-npp", str(prompt), "-ntg", str(answer)),
            *("-npl", str(work.requests), "--output-format", "jsonl"),
        ]

    @property
    def options(self) -> dict[str, Any]:
        return {"options": " ".join(("-t", str(self.threads), "-fa", "on", *self._placement()))}

    def _placement(self) -> tuple[str, ...]:
        if self.cache is None:
            return ("-ngl", "0")
        on_cpu = self.layers - round(self.cache * self.layers)
        return ("-ngl", "99", "-ncmoe", str(on_cpu))

    def turn(self, work: Workload) -> dict[str, Any]:
        printed = output_of(self.command(work), gpu=self.cache is not None)
        return rates(printed, work, self.program)


def rates(printed: str, work: Workload, program: Path) -> dict[str, Any]:
    """Of the row for this workload; times per token are the mean of all sequences."""
    prompt, answer, count = work.prompts.median, work.answers.median, work.requests
    for line in printed.splitlines():
        row = _parsed(line)
        if (row.get("pp"), row.get("tg"), row.get("pl")) != (prompt, answer, count):
            continue
        seconds = row["t_pp"] + row["t_tg"]
        step = row["t_tg"] / answer * 1e3
        return {
            "seconds": seconds,
            "prompt_tokens": count * prompt,
            "output_tokens": count * answer,
            "output_tok_s": count * answer / seconds,
            "total_tok_s": count * (prompt + answer) / seconds,
            "tpot_ms": {"p50": step, "p99": step},
        }
    raise ImpossibleSetting(f"{program} did not report {count} x {prompt}+{answer}")


def _parsed(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line) if line.startswith("{") else {}
    except ValueError:
        row = {}
    return row if isinstance(row, dict) else {}


def find_batched(path: str) -> Path:
    """`path` is the program or a folder that contains it; without one it is looked for in PATH."""
    folders = [Path(path).expanduser()] if path else map(Path, os.get_exec_path())
    for folder in folders:
        for one in (folder, *(folder / below / PROGRAM for below in ("", "bin", "build/bin"))):
            if one.is_file() and os.access(one, os.X_OK):
                return one.absolute()
    raise SystemExit(f"there is no {PROGRAM} {f'at {path}' if path else 'in PATH'}")


def architecture_of(model: str, shape: str | None, layers: int | None) -> Architecture:
    if shape is not None:
        return synthetic_architecture(shape, layers)
    return read_architecture(default_model() if model == BUNDLED else model)


def write_model(architecture: Architecture, expert_dtype: str, folder: Path) -> Path:
    """Random weights in the model's shape, all matrices in the precision of the experts."""
    check_writable(architecture, expert_dtype, folder)
    path = folder / "random.gguf"
    write_random_gguf(architecture, expert_dtype, path)
    return path
