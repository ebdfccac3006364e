"""Opens `AsyncLLM` for a benchmark: on a checkpoint, or on random weights in a known model's shape.

Of random weights no checkpoint is written. Opening a model, reading its network and loading its
experts are replaced by what makes them up; all else is the engine's own: the memory plan, the
batcher, the thread that drives it. Only names that older commits have, too, are used here, since
`benchmarks.load` runs this file with another commit's package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from moesaic.engine.assemble import synthetic_store
from moesaic.engine.async_llm import AsyncLLM
from moesaic.engine.engine_settings import EngineSettings
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.decoder import Decoder
from moesaic.models.open_model import OpenModel
from moesaic.models.synthetic_model import synthetic_decoder

BUNDLED = "bundled"
RANDOM_DTYPE = "bf16"  # of random weights that are not in integers


def open_engine(
    model: str, shape: str | None, layers: int | None, options: dict[str, Any]
) -> AsyncLLM:
    """`shape` is a known model's name or a config.json, `layers` how many of its layers there are;
    without it `model` is a checkpoint's folder, or the bundled one's. `options` are fields of the
    settings; those that this version of them lacks are left out. Random weights have any context
    that is asked for."""
    known = {field.name for field in fields(EngineSettings)}
    chosen = {name: value for name, value in options.items() if name in known}
    if shape is None:
        return AsyncLLM(None if model == BUNDLED else model, **chosen)
    architecture = synthetic_architecture(shape, layers)
    longest = max(architecture.spec.max_context, chosen.get("max_model_len") or 0)
    spec = replace(architecture.spec, max_context=longest)
    with _random_weights(replace(architecture, spec=spec)) as folder:
        return AsyncLLM(folder, **{"dtype": RANDOM_DTYPE, **chosen})


@contextmanager
def _random_weights(architecture: Architecture) -> Iterator[Path]:
    """A folder that opens as a model of this architecture."""
    replaced: dict[str, Callable[..., Any]] = {
        "moesaic.engine.preparation.local_model": lambda model, *_: Path(model),
        "moesaic.engine.preparation.open_model": partial(_opened, architecture),
        "moesaic.engine.loading.load_decoder": _decoder,
        "moesaic.engine.assemble.load_store": _store,
    }
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="moesaic-random-"))
        for name, function in replaced.items():
            stack.enter_context(patch(name, function))
        yield Path(folder)


def _opened(architecture: Architecture, folder: object) -> OpenModel:
    nothing: Any = ()  # neither tensors nor experts: `_decoder` and `_store` make them up
    return OpenModel(architecture, nothing, nothing)


def _decoder(
    model: OpenModel, dtype: str, device: str = "cpu", kernel: str = "auto", dense: Any = None
) -> Decoder:
    assert device == "cpu", "weights are made in main memory"
    return synthetic_decoder(model.architecture, dtype, kernel, dense)


def _store(
    decoder: Decoder,
    experts: object,
    dtype: str,
    advance: Callable[[int], None] = lambda experts: None,
    kernel_name: str = "auto",
    mapped: bool = True,
) -> ExpertStore:
    return synthetic_store(decoder, dtype, advance, kernel_name)
