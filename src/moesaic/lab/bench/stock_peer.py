"""Stock `transformers` with `accelerate`'s offloading as a peer of a bench: the same shape, the
same tests, the same GPU memory, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from statistics import mean, stdev
from typing import Any

import torch

from moesaic.core.errors import ImpossibleRequest
from moesaic.core.parsing import short
from moesaic.hardware.host import memory, usable_cores
from moesaic.lab.bench.bench_model import BenchModel
from moesaic.lab.bench.bench_row import BenchConfig
from moesaic.lab.bench.cases import Case
from moesaic.lab.bench.stock_config import stock_config
from moesaic.lab.user_environment import of_stock_process
from moesaic.model_info.packed.header import is_packed

NAME = "accelerate"
MOST_TOKENS = 16  # that it writes for one figure: layers cross the link for every one of them
_CHILD = (sys.executable, "-m", "moesaic.lab.bench.stock_child")
_SECONDS = 300
_WORDS = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


class PeerFailed(ImpossibleRequest):
    """Another program could not be measured."""


@dataclass(frozen=True, slots=True)
class PeerRow:
    """Another program in one test, with as much GPU memory as ours had."""

    program: str
    test: str
    cache_ratio: float
    tokens_per_s: float
    stdev: float | None
    words: str  # how it was run


def why_not_stock(config: BenchConfig) -> str | None:
    """Why the stock implementation cannot be compared; None: it can."""
    if not config.settings.capabilities.own_memory:
        return "it offloads from a GPU, and there is none in this run"
    for package in ("transformers", "accelerate"):
        if find_spec(package) is None:
            return f"{package} is not installed: pip install {package}"
    if config.plan.expert_dtype != config.plan.dtype:
        return f"it has no experts in {config.plan.expert_dtype}"
    return None


def give_memory_back() -> None:
    """What PyTorch keeps of the GPU for this process."""
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def measure_stock(
    model: BenchModel, config: BenchConfig, cases: Sequence[Case], repetitions: int
) -> list[PeerRow]:
    """Raises PeerFailed with its last words; tests of several sequences are left out."""
    if model.folder is not None and is_packed(model.folder):
        raise PeerFailed(f"{NAME} reads no packed model: give the model it was made from")
    asked = request(model, config, cases, repetitions)
    if not asked["tests"]:
        return []
    answer = _run(asked)
    on_gpu = answer["layers_on_gpu"]
    words = f"{on_gpu} of {model.spec.num_layers} layers on the GPU" if on_gpu is not None else ""
    return [
        PeerRow(
            NAME,
            name,
            config.plan.cache_ratio,
            mean(rates),
            stdev(rates) if len(rates) > 1 else None,
            words,
        )
        for name, rates in answer["tests"].items()
    ]


def request(
    model: BenchModel, config: BenchConfig, cases: Sequence[Case], repetitions: int
) -> dict[str, Any]:
    """What the child is asked: `gpu_bytes` is what ours had planned to use."""
    _, available = memory()
    folder = None if model.folder is None else str(model.folder)
    tests = {
        case.name: (case.phase, case.tokens if case.phase == "prefill" else _few(case.tokens))
        for case in cases
        if case.batch == 1
    }
    return {
        "folder": folder,
        "config": None if folder is not None else stock_config(model.spec),
        "dtype": _WORDS[config.plan.dtype],
        "threads": config.settings.threads or usable_cores(),
        "gpu_bytes": config.plan.accelerator_bytes,
        "host_bytes": available or 1 << 40,
        "tests": tests,
        "repetitions": repetitions,
    }


def _few(tokens: int) -> int:
    return min(tokens, MOST_TOKENS)


def _run(asked: dict[str, Any]) -> dict[str, Any]:
    try:
        child = subprocess.run(
            _CHILD, input=json.dumps(asked), capture_output=True, timeout=_SECONDS, check=False,
            encoding="utf-8", errors="replace", env=of_stock_process(),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"{NAME} took longer than {_SECONDS} s: use fewer tokens") from None
    lines = child.stdout.splitlines()
    if child.returncode or not lines:
        last = (child.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise PeerFailed(f"{NAME} ended with status {child.returncode}: {last}")
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        raise PeerFailed(f"{NAME} answered {short(lines[-1])}, expected JSON") from None
    return answer
