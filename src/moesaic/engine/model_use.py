"""Refusals of a loaded model that was closed, or that another process has loaded."""

from __future__ import annotations

import os

from moesaic.core.errors import ImpossibleSetting

# OpenMP and the kernels' threads belong to the process that first computes: in a fork of it, work
# is handed to threads that do not exist, also for a model that the fork opens.
SPAWN = (
    "start processes with the start method 'spawn' (multiprocessing.get_context('spawn')) and open "
    "the model there, or fork before the first model is opened"
)


def refuse_use_in_fork(model: str, process: int) -> None:
    """Only the process that loaded the model may use it."""
    if os.getpid() != process:
        raise ImpossibleSetting(
            f"{model} was loaded by process {process}, of which this one is a fork, and a fork has "
            f"no threads: {SPAWN}"
        )


def closed_error(model: str) -> ImpossibleSetting:
    return ImpossibleSetting(f"{model} was closed: load it again to go on")
