"""How much memory the GPU has left."""

from __future__ import annotations

import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.machines.accelerators import check_usable


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
    return int(free)
