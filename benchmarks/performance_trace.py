"""Routing that was recorded elsewhere, for a model with random weights."""

from __future__ import annotations

from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.bench.bench_model import random_model
from moesaic.workloads.source import open_trace


def check_trace(path: Path, model: str, layers: int) -> None:
    """Refuses now what `moesaic bench --trace` would refuse once it is that row's turn."""
    try:
        header = open_trace(path).header
    except OSError as error:
        raise ImpossibleSetting(f"--deepseek-trace {path}: {error.strerror}") from None
    spec = random_model(model, layers).spec
    asked = (spec.num_moe_layers, spec.num_experts, spec.top_k)
    found = (header.num_layers, header.num_experts, header.top_k)
    if asked != found:
        names = ("MoE layers", "experts", "experts per token")
        have, want = (
            ", ".join(f"{count} {name}" for count, name in zip(counts, names, strict=True))
            for counts in (found, asked)
        )
        raise ImpossibleSetting(
            f"--deepseek-trace {path} has {have}; the rows cuda:deepseek-* need {want}: give a "
            "trace of that model, or leave the option out (synthetic routing)"
        )
