"""Does norm and router in one native call choose what the separate operations choose?"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

pytest.importorskip("moesaic.kernels._native", reason="the native kernels were not built")

from moesaic.kernels.instruction_sets import REFERENCE, choose
from moesaic.kernels.native_router import MAX_TOKENS, RING_SLOTS, NativeRouter
from moesaic.model_info.network import RouterRule
from moesaic.models.experts.fused_router import fused_router
from moesaic.models.experts.router import Choice, Router
from moesaic.models.norm import RmsNorm

pytestmark = pytest.mark.skipif(choose() == REFERENCE, reason="needs the native kernels")

EXPERTS = 24
RULES = {
    "mixtral": RouterRule(2, "softmax", True, round_weights=True),
    "olmoe": RouterRule(8, "softmax", False),
    "one expert": RouterRule(1, "softmax", False),
    "every expert": RouterRule(EXPERTS, "softmax", True),
    "deepseek-v2": RouterRule(
        6, "softmax", False, factor=16.0, in_fp32=True, groups=4, top_groups=2, group_score="max"
    ),
    "glm-4.5": RouterRule(4, "sigmoid", True, factor=2.5, in_fp32=True, correction_bias=True),
    "glm-4.5 in groups": RouterRule(
        4,
        "sigmoid",
        True,
        in_fp32=True,
        correction_bias=True,
        groups=3,
        top_groups=2,
        group_score="best-two",
    ),
}
DTYPES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 3e-3}


def layer(rule: RouterRule, width: int, dtype: torch.dtype) -> tuple[RmsNorm, Router]:
    torch.manual_seed(width)
    norm = RmsNorm((1 + 0.1 * torch.randn(width)).to(dtype), 1e-6)
    bias = 0.05 * torch.randn(EXPERTS) if rule.correction_bias else None
    return norm, Router(rule, (torch.randn(EXPERTS, width) / width**0.5).to(dtype), bias)


def fused(norm: RmsNorm, router: Router) -> NativeRouter[Choice]:
    made = fused_router(0, norm, router)
    assert made is not None
    return made


@pytest.mark.parametrize("width", [128, 96, 37])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", RULES)
def test_it_chooses_what_torch_chooses(name: str, dtype: torch.dtype, width: int) -> None:
    norm, router = layer(RULES[name], width, dtype)
    native, close = fused(norm, router), DTYPES[dtype]
    agreed = 0
    for attempt in range(40):
        stream = torch.randn(attempt % MAX_TOKENS + 1, width).to(dtype)
        routing, hidden = native(stream), norm(stream)
        assert torch.allclose(routing.hidden.float(), hidden.float(), rtol=close, atol=close)
        wanted, got = router(routing.hidden), routing.choice
        assert torch.allclose(got.scores, wanted.scores, rtol=close, atol=close)
        same = torch.equal(got.experts, wanted.experts)
        agreed += same
        if same:
            factor = RULES[name].factor
            weights = wanted.weights.float()
            assert torch.allclose(got.weights, weights, rtol=close, atol=close * factor)
    # In 16 bits logits are rounded, and a sum taken in another order rounds to a neighbour.
    assert agreed >= (40 if dtype == torch.float32 else 30)


@pytest.mark.parametrize("name", RULES)
def test_ties_fall_as_they_do_in_torch(name: str) -> None:
    norm, router = layer(RULES[name], 64, torch.float32)
    router.weight[1::2] = router.weight[::2]  # pairs of equal experts
    if router.bias is not None:
        router.bias[1::2] = router.bias[::2]
    native = fused(norm, router)
    for _ in range(50):
        stream = torch.randn(1, 64)
        routing = native(stream)
        assert torch.equal(routing.choice.experts, router(routing.hidden).experts)


def test_a_single_tokens_routing_is_kept_for_some_steps() -> None:
    norm, router = layer(RULES["olmoe"], 64, torch.float32)
    native = fused(norm, router)
    streams = torch.randn(RING_SLOTS, 1, 64)
    kept = [native(stream) for stream in streams]
    for stream, routing in zip(streams, kept, strict=True):
        assert torch.equal(routing.choice.experts, router(norm(stream)).experts)
        assert (routing.layer_routing.experts == routing.choice.experts.numpy()).all()


def test_what_is_no_number_stays_one() -> None:
    norm, router = layer(RULES["mixtral"], 64, torch.float32)
    stream = torch.randn(2, 64)
    stream[1, 3] = float("nan")
    routing = fused(norm, router)(stream)
    assert routing.choice.weights[0].isfinite().all()
    assert routing.choice.weights[1].isnan().all()
    assert ((routing.choice.experts >= 0) & (routing.choice.experts < EXPERTS)).all()


def test_it_takes_a_few_tokens_of_its_own_dtype() -> None:
    native = fused(*layer(RULES["olmoe"], 64, torch.bfloat16))
    assert native.takes(torch.zeros(MAX_TOKENS, 64, dtype=torch.bfloat16))
    assert not native.takes(torch.zeros(MAX_TOKENS + 1, 64, dtype=torch.bfloat16))
    assert not native.takes(torch.zeros(1, 64))
    assert not native.takes(torch.zeros(64, 1, dtype=torch.bfloat16).T.expand(2, 64))


def test_weights_in_two_dtypes_are_left_to_torch() -> None:
    norm, router = layer(RULES["olmoe"], 64, torch.bfloat16)
    assert fused_router(0, RmsNorm(norm.weight.float(), norm.eps), router) is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", RULES)
def test_a_single_token_may_use_fewer(name: str, dtype: torch.dtype) -> None:
    """As the router of a model with so many experts per token, padded; calls with other counts in
    between leave it as it is."""
    rule = RULES[name]
    norm, router = layer(rule, 64, dtype)
    native = fused(norm, router)
    for count in range(1, rule.top_k + 1):
        narrow = fused(norm, replace(router, rule=replace(rule, top_k=count)))
        stream = torch.randn(1, 64).to(dtype)
        assert native.takes(stream, torch.tensor([count]))
        routing, alone = native(stream, count), narrow(stream)
        native(torch.randn(1, 64).to(dtype))
        native(torch.randn(1, 64).to(dtype), 1)
        assert torch.equal(routing.choice.experts[:, :count], alone.choice.experts)
        assert torch.equal(routing.choice.weights[:, :count], alone.choice.weights)
        assert (routing.choice.experts[:, count:] == -1).all()
        assert not routing.choice.weights[:, count:].any()
        assert routing.choice.counts is not None
        assert routing.choice.counts.tolist() == [count]
        assert routing.layer_routing.used().tolist() == alone.choice.experts[0].tolist()


def test_several_tokens_that_use_fewer_are_left_to_torch() -> None:
    native = fused(*layer(RULES["olmoe"], 64, torch.float32))
    assert not native.takes(torch.zeros(2, 64), torch.tensor([4, 4]))
