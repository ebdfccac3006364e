"""From a model directory, or a GGUF file, to something that computes."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.dtypes import torch_dtype
from moesaic.model_info.gguf.files import is_gguf
from moesaic.model_info.model_config import open_config
from moesaic.model_info.packed.header import is_packed
from moesaic.model_info.quantization.read import read_quantization
from moesaic.models.checkpoints.checkpoint import Checkpoint
from moesaic.models.checkpoints.expert_weights import ExpertReader, names_in
from moesaic.models.checkpoints.gguf.checkpoint import GgufCheckpoint
from moesaic.models.checkpoints.named_tensors import NamedTensors
from moesaic.models.checkpoints.packed_experts import PackedExperts
from moesaic.models.checkpoints.quantized.checkpoint import QuantizedCheckpoint
from moesaic.models.checkpoints.tensor_sources import CheckpointTensors, MetaTensors
from moesaic.models.checkpoints.unread_tensors import check_tied_head, refuse_unread
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.decoder import Decoder
from moesaic.models.decoder_builder import DecoderBuilder
from moesaic.models.experts.expert_service import ResidentExperts

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer


class OpenModel(NamedTuple):
    """A model found to be complete; no weights are read yet."""

    architecture: Architecture
    checkpoint: NamedTensors
    experts: ExpertReader | PackedExperts


def open_model(folder: str | os.PathLike[str]) -> OpenModel:
    """Every file, tensor and shape is checked: BadConfig or BadCheckpoint now, not later. All
    that the files have is used, or known not to matter."""
    architecture = read_architecture(folder)
    checkpoint = _checkpoint(Path(folder), architecture)
    experts = _experts(Path(folder), checkpoint, architecture)
    names = partial(names_in, checkpoint, architecture)
    DecoderBuilder(architecture, MetaTensors(checkpoint), names).build()
    if isinstance(experts, ExpertReader):
        experts.check()
    refuse_unread(checkpoint, architecture)
    return OpenModel(architecture, checkpoint, experts)


def _checkpoint(path: Path, architecture: Architecture) -> NamedTensors:
    if is_gguf(path):
        return GgufCheckpoint(path, architecture)
    form = read_quantization(open_config(path))
    stored = Checkpoint(path)
    return stored if form is None else QuantizedCheckpoint(stored, form)


def _experts(
    path: Path, checkpoint: NamedTensors, architecture: Architecture
) -> ExpertReader | PackedExperts:
    if is_packed(path):
        return PackedExperts(path, architecture)
    return ExpertReader(checkpoint, architecture)


def with_experts_per_token(model: OpenModel, count: int) -> OpenModel:
    """The same model choosing fewer experts for every token than it was trained with."""
    trained = model.architecture
    if count > trained.spec.top_k:
        raise ImpossibleSetting(
            f"{count} experts per token were asked for; {trained.spec.name} was trained with "
            f"{trained.spec.top_k}: ask for 1 to {trained.spec.top_k}"
        )
    narrowed = replace(
        trained,
        spec=replace(trained.spec, top_k=count),
        network=trained.network.with_top_k(count),
    )
    return model._replace(architecture=narrowed)


def load_decoder(
    model: OpenModel,
    dtype: str,
    device: str = "cpu",
    kernel: str = "auto",
    dense: DenseRunner | DenseQuantizer | None = None,
) -> Decoder:
    """Everything but the routed experts, converted to `dtype` tensor by tensor, and packed by
    `dense` if it is given."""
    check_tied_head(model.checkpoint, model.architecture)
    names = partial(names_in, model.checkpoint, model.architecture)
    weights = CheckpointTensors(model.checkpoint, torch_dtype(dtype), device)
    return DecoderBuilder(model.architecture, weights, names, kernel, dense).build()


def readable_experts(model: OpenModel) -> ExpertReader:
    """The reader of a model whose experts can still be converted: one that is not packed."""
    if isinstance(model.experts, PackedExperts):
        raise ImpossibleSetting(
            f"{model.experts.path.parent.name} is packed: its experts are {model.experts.dtype} "
            "blocks for one kernel, which cannot be converted; give the model it was made from"
        )
    return model.experts


def load_resident_experts(model: OpenModel, dtype: str, device: str = "cpu") -> ResidentExperts:
    """All routed experts in one place; one expert more than that is in memory at a time."""
    spec = model.architecture.spec
    kernel = make_kernel(model.architecture.expert_shape, dtype)
    experts = ResidentExperts(kernel, spec.num_moe_layers, spec.num_experts, device)
    for which, weights in readable_experts(model):
        experts.put(which, weights)
    return experts
