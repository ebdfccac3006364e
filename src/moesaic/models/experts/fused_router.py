"""Norm and router in one native call, where this CPU and these weights allow it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from moesaic.kernels.instruction_sets import ISA_NUMBERS, REFERENCE, choose
from moesaic.model_info.network import RouterRule
from moesaic.models.experts.router import Choice, Router
from moesaic.models.norm import RmsNorm

if TYPE_CHECKING:
    from moesaic.kernels import _native
    from moesaic.kernels.native_router import NativeRouter


def fused_router(
    layer: int, norm: RmsNorm, router: Router, kernel: str = "auto"
) -> NativeRouter[Choice] | None:
    isa = choose(kernel)
    if isa == REFERENCE or not _plain(norm, router):
        return None
    from moesaic.kernels.native_router import NativeRouter

    def config(top_k: int) -> _native.RouterConfig:
        rule = router_config(router.rule, len(router.weight))
        rule.top_k = top_k
        return rule

    weights = (norm.weight, norm.eps, router.weight, router.bias)
    rule = (ISA_NUMBERS[isa], config, router.rule.top_k)
    return NativeRouter(layer, *weights, *rule, Choice, norm.dense)


def router_config(rule: RouterRule, experts: int) -> _native.RouterConfig:
    """A routing rule as the native code reads it."""
    from moesaic.kernels import _native

    config = _native.RouterConfig()
    config.experts, config.top_k = experts, rule.top_k
    config.sigmoid, config.renormalize = rule.scoring == "sigmoid", rule.normalized
    config.in_fp32, config.round_weights = rule.in_fp32, rule.round_weights
    config.scaling_factor = rule.factor
    config.groups, config.top_groups = rule.groups, rule.top_groups
    config.top2_group_score = rule.group_score == "best-two"
    return config


def _plain(norm: RmsNorm, router: Router) -> bool:
    """Whether all is on the CPU, in one dtype, row after row, and logits are a product only."""
    if router.logit_bias is not None:
        return False
    tensors = [norm.weight, router.weight]
    if router.bias is not None:
        if router.bias.dtype != torch.float32:
            return False
        if router.bias.device.type != "cpu" or not router.bias.is_contiguous():
            return False
    known = (torch.float32, torch.bfloat16, torch.float16)
    return (
        all(
            t.device.type == "cpu" and t.is_contiguous() and t.dtype == tensors[0].dtype
            for t in tensors
        )
        and tensors[0].dtype in known
    )
