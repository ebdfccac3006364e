"""Random experts of a small model, and a store that holds them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch

from moesaic.core.routing import ExpertId
from moesaic.engine.expert_kernel import expert_kernel
from moesaic.kernels.base import ExpertWeights
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.models.configs.architecture import Architecture
from moesaic.models.synthetic_model import random_expert


def expert_weights(architecture: Architecture) -> Iterator[tuple[ExpertId, ExpertWeights]]:
    spec = architecture.spec
    for layer in range(spec.num_moe_layers):
        for expert in range(spec.num_experts):
            torch.manual_seed(layer * 100 + expert)
            weights = random_expert(architecture.expert_shape)
            scale = 1 + 0.1 * torch.randn(1)
            yield ExpertId(layer, expert), replace(
                weights, gate=weights.gate * torch.randn_like(weights.gate),
                down=weights.down * scale * torch.randn_like(weights.down),
            )  # fmt: skip


def filled_store(architecture: Architecture, dtype: str, kernel: str = "auto") -> ExpertStore:
    spec = architecture.spec
    packing = expert_kernel(architecture.expert_shape, dtype, kernel)
    store = ExpertStore(packing, spec.num_moe_layers, spec.num_experts)
    for which, weights in expert_weights(architecture):
        store.put(which, weights)
    return store
