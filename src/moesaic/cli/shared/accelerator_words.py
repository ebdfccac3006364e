"""The first line of a command that runs a model: which device is used, where that was left open."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings

_ANNOUNCED = "moesaic.accelerator_announced"
# Kernels of the CPU as people know them.
_KERNELS = {
    "amx": "AMX",
    "avx512": "AVX-512",
    "avx512-vnni": "AVX-512",
    "avx512-base": "AVX-512",
    "avx2-vnni": "AVX2",
    "avx2": "AVX2",
    "reference": "PyTorch",
}


def announce_accelerator(settings: EngineSettings) -> None:
    """Name the accelerator on standard error, once: again only where the CPU is used after all."""
    words = accelerator_words(settings)
    context = click.get_current_context(silent=True)
    known = {} if context is None else context.meta
    if words is not None and known.get(_ANNOUNCED) != words:
        known[_ANNOUNCED] = words
        click.echo(words, err=True)


def accelerator_words(settings: EngineSettings) -> str | None:
    """None: the accelerator was named, or another machine is planned for."""
    from moesaic.hardware.nvidia import card_on_bus, nvidia_driver
    from moesaic.kernels.instruction_sets import choose
    from moesaic.machines.accelerators import Automatic

    chosen, driver = settings.accelerator, nvidia_driver()
    if not isinstance(chosen, Automatic) or settings.host is not None:
        return None
    if chosen.reason is None:
        gpu = next(iter(driver.gpus), None)
        size = "" if gpu is None else f": {gpu.name}, {gpu.memory_bytes / 2**30:.0f} GiB"
        return f"using the GPU{size}"
    kernel = choose(settings.kernel)
    cpu = f"experts run on the CPU ({_KERNELS.get(kernel, kernel)})"
    if driver.problem is not None and not card_on_bus():
        return f"no GPU: {cpu}"
    return f"the GPU is not used, {cpu}: {chosen.reason}"
