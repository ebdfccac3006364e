"""What a bench measures: a checkpoint, or random weights in a known shape. Loaded once, whatever
runs on it; how long that took and how much memory is noted.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

from moesaic.engine.assemble import load_store, synthetic_store
from moesaic.hardware.procfs import ProcessMemory, process_memory, reset_peak
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.decoder import Decoder
from moesaic.models.open_model import OpenModel, load_decoder, open_model
from moesaic.models.synthetic_model import synthetic_decoder

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer


@dataclass(frozen=True, slots=True)
class BenchModel:
    """Found to be complete; nothing is loaded yet."""

    architecture: Architecture
    opened: OpenModel | None  # None: random weights
    folder: Path | None = None  # of a checkpoint

    @property
    def spec(self) -> ModelSpec:
        return self.architecture.spec


@dataclass(frozen=True, slots=True)
class Loaded:
    decoder: Decoder
    store: ExpertStore
    seconds: float
    memory: ProcessMemory  # when it was done

    @property
    def peak_ratio(self) -> float | None:
        """The most memory taken while loading, over what was taken at the end."""
        now, peak = self.memory
        return peak / now if now and peak else None


def from_folder(folder: str | os.PathLike[str]) -> BenchModel:
    opened = open_model(folder)
    return BenchModel(opened.architecture, opened, Path(folder))


def random_model(name_or_path: str, layers: int | None = None) -> BenchModel:
    return BenchModel(synthetic_architecture(name_or_path, layers), None)


def load_bench_model(
    model: BenchModel,
    dtype: str,
    expert_dtype: str,
    advance: Callable[[int], None] = lambda experts: None,
    kernel: str = "auto",
    mapped: bool = True,
    dense: DenseRunner | DenseQuantizer | None = None,
) -> Loaded:
    """`advance(1)` is called for every expert loaded; `mapped`: a packed model's file is; `dense`
    packs the other matrices."""
    reset_peak()
    started = perf_counter()
    if model.opened is None:
        decoder = synthetic_decoder(model.architecture, dtype, kernel, dense)
        store = synthetic_store(decoder, expert_dtype, advance, kernel)
    else:
        decoder = load_decoder(model.opened, dtype, kernel=kernel, dense=dense)
        store = load_store(decoder, model.opened.experts, expert_dtype, advance, kernel, mapped)
    return Loaded(decoder, store, perf_counter() - started, process_memory())
