"""A model's experts as PyTorch computes them, also with what is no number."""

from __future__ import annotations

from moesaic.kernels.choose import make_kernel
from moesaic.kernels.instruction_sets import REFERENCE
from moesaic.models.experts.expert_service import ResidentExperts
from moesaic.models.open_model import OpenModel, readable_experts


def reference_experts(model: OpenModel) -> ResidentExperts:
    spec = model.architecture.spec
    kernel = make_kernel(model.architecture.expert_shape, "bf16", REFERENCE)
    experts = ResidentExperts(kernel, spec.num_moe_layers, spec.num_experts)
    for which, weights in readable_experts(model):
        experts.put(which, weights)
    return experts
