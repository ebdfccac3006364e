"""From a model directory to something that computes."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from moesaic.core.errors import ImpossibleSetting
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.dtypes import torch_dtype
from moesaic.models.architecture import Architecture
from moesaic.models.checkpoint import Checkpoint
from moesaic.models.config import read_architecture
from moesaic.models.decoder import Decoder
from moesaic.models.decoder_builder import DecoderBuilder
from moesaic.models.expert_service import ResidentExperts
from moesaic.models.expert_weights import ExpertReader, moe_prefix
from moesaic.models.tensor_sources import CheckpointTensors, MetaTensors
from moesaic.models.unread_tensors import check_tied_head, refuse_unread


class OpenModel(NamedTuple):
    """A model directory found to be complete; no weights are read yet."""

    architecture: Architecture
    checkpoint: Checkpoint
    experts: ExpertReader


def open_model(folder: str | os.PathLike[str]) -> OpenModel:
    """Every file, tensor and shape is checked: BadConfig or BadCheckpoint now, not later. All
    that the files have is used, or known not to matter."""
    architecture = read_architecture(folder)
    checkpoint = Checkpoint(Path(folder))
    experts = ExpertReader(checkpoint, architecture)
    prefix = partial(moe_prefix, checkpoint, architecture)
    DecoderBuilder(architecture, MetaTensors(checkpoint), prefix).build()
    experts.check()
    refuse_unread(checkpoint, architecture)
    return OpenModel(architecture, checkpoint, experts)


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
        router=replace(trained.router, top_k=count),
    )
    return model._replace(architecture=narrowed)


def load_decoder(
    model: OpenModel, dtype: str, device: str = "cpu", kernel: str = "auto"
) -> Decoder:
    """Everything but the routed experts, converted to `dtype` tensor by tensor."""
    check_tied_head(model.checkpoint, model.architecture)
    prefix = partial(moe_prefix, model.checkpoint, model.architecture)
    weights = CheckpointTensors(model.checkpoint, torch_dtype(dtype), device)
    return DecoderBuilder(model.architecture, weights, prefix, kernel).build()


def load_resident_experts(model: OpenModel, dtype: str, device: str = "cpu") -> ResidentExperts:
    """All routed experts in one place; one expert more than that is in memory at a time."""
    spec = model.architecture.spec
    kernel = make_kernel(model.architecture.expert_shape, dtype)
    experts = ResidentExperts(kernel, spec.num_moe_layers, spec.num_experts, device)
    for which, weights in model.experts:
        experts.put(which, weights)
    return experts
