"""Runs another program that measures, and turns its failures into words."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.lab.user_environment import of_program

_LAST_LINES = 3  # of what a failing program said
TIME_LIMIT_S = 1800.0  # of one process, loading included: far more than any that makes sense


def output_of(command: Sequence[str], gpu: bool) -> str:
    """What it prints. Without `gpu` it sees none: llama.cpp would use one for large products, even
    if no layer is there."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=TIME_LIMIT_S,
            env=environment_of(gpu),
        )
    except subprocess.TimeoutExpired:  # it was ended
        raise ImpossibleSetting(
            f"{command[0]} had not ended after {TIME_LIMIT_S:g} s and was stopped: measure fewer "
            "tokens (-p, -n) or a smaller model, or leave it out"
        ) from None
    except OSError as error:
        raise ImpossibleSetting(f"{command[0]} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = " | ".join(done.stderr.strip().splitlines()[-_LAST_LINES:]) or "it said nothing"
        raise ImpossibleSetting(f"{command[0]} failed with code {done.returncode}: {said}")
    return done.stdout


def environment_of(gpu: bool) -> dict[str, str]:
    return of_program() if gpu else {**of_program(), "CUDA_VISIBLE_DEVICES": ""}


def checked_rate(rate: object, program: Path) -> float:
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
        raise ImpossibleSetting(f"{program} reported a rate of {rate!r} tokens/s")
    return float(rate)
