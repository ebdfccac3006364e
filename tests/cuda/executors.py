"""The two executors of a machine with a GPU, as tests look into them."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from moesaic.engine.runner import Runner
from moesaic.machines.layerwise.gpu_layers import GpuLayers

if TYPE_CHECKING:
    from moesaic.machines.captured.captured import Captured


def layers_of(runner: Runner) -> GpuLayers:
    layers = runner.machine.layerwise
    assert isinstance(layers, GpuLayers)
    return layers


def captured_of(runner: Runner) -> Captured:
    assert runner.machine.why_layerwise is None
    return cast("Captured", runner.machine.executors[0])
