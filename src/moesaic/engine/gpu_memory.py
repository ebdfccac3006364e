"""How much memory the GPU has left, and whether a model is run on it or on the CPU where that was
left open."""

from __future__ import annotations

from typing import NamedTuple

import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.kernels.gpu.nvrtc import CompilationFailed, find_compiler
from moesaic.machines.accelerators import check_usable, chosen_gpu


class UsableMachine(NamedTuple):
    """`free`: see `accelerator_free`."""

    settings: EngineSettings
    free: int | None


def usable_machine(settings: EngineSettings) -> UsableMachine:
    """The machine, with the CPU instead of an unusable GPU that the user did not name."""
    try:
        return UsableMachine(settings, accelerator_free(settings))
    except (ImpossibleSetting, CompilationFailed) as error:
        without = settings.without_gpu(str(error))
        if without is None:
            raise
        return UsableMachine(without, None)


def accelerator_free(settings: EngineSettings) -> int | None:
    """Bytes that are free in the accelerator's own memory; None where it has none of its own.
    Refuses an accelerator that cannot be used here."""
    check_usable(settings.accelerator)
    if not settings.capabilities.own_memory:
        return None
    try:
        free, _ = torch.cuda.mem_get_info()
    except RuntimeError as error:
        raise ImpossibleSetting(
            f"accelerator {settings.accelerator!r}: PyTorch {torch.__version__} cannot use the GPU "
            f"({error}). If the driver is too old for it, update the driver or install an older "
            "build of PyTorch"
        ) from None
    if chosen_gpu(settings.accelerator):  # else what is missing is an error where it is needed
        find_compiler()
    return int(free)
