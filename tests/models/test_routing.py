"""Does a router choose, weigh and expose what it should, also in the cases left over?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import loaded_models
import pytest
import torch

import stock
from moesaic.model_info.network import RouterRule
from moesaic.models.experts.feed_forward import MoeBlock
from moesaic.models.experts.router import Router, choose
from moesaic.models.open_model import load_decoder, open_model

TOLERANCE = 1e-4  # as in test_parity
TOKENS = list(range(3, 40, 2))


def compare(model: Any, folder: Path) -> loaded_models.Recorder:
    """Equal logits, and what the experts were asked on the way."""
    loaded = loaded_models.load(stock.save(model, folder))
    recorder = loaded_models.Recorder(loaded.experts)
    loaded.experts = recorder
    with torch.inference_mode():
        theirs = model(torch.tensor([TOKENS])).logits[0]
    assert (theirs - loaded.logits([TOKENS])[0]).abs().max() < TOLERANCE
    return recorder


def gates(model: Any) -> list[Any]:
    parts = ("gate.weight", "router.weight", "router.bias")
    return [tensor for name, tensor in model.named_parameters() if name.endswith(parts)]


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_tied_scores_are_broken_as_the_stock_model_does(name: str, tmp_path: Path) -> None:
    """Experts 1, 3, 5, ... have the gate of their neighbour: every choice is between equals."""
    model = stock.make(name)
    with torch.no_grad():
        for gate in gates(model):
            gate[1::2] = gate[0::2]
    recorder = compare(model, tmp_path)
    scores = recorder.seen[0].choice.scores
    assert torch.equal(scores[:, 1::2], scores[:, 0::2])


@pytest.mark.parametrize("name", ["mixtral", "glm-4.5", "deepseek-v2"])
def test_all_scores_tied(name: str, tmp_path: Path) -> None:
    model = stock.make(name)
    with torch.no_grad():
        for gate in gates(model):
            gate.zero_()
    compare(model, tmp_path)


def test_experts_without_tokens_change_nothing(tmp_path: Path) -> None:
    """A correction bias keeps all tokens away from eight of twelve experts."""
    model = stock.make("glm-4.5")
    with torch.no_grad():
        for name, bias in model.named_buffers():
            if "e_score_correction_bias" in name:
                bias[:8] = -100.0
    recorder = compare(model, tmp_path)
    assert all(int(routed.choice.experts.min()) == 8 for routed in recorder.seen)


@pytest.mark.parametrize("name", stock.ALL)
def test_a_choice_has_all_that_a_trace_wants(name: str) -> None:
    loaded = loaded_models.load(stock.saved(name).folder)
    recorder = loaded_models.Recorder(loaded.experts)
    loaded.experts = recorder
    loaded.logits([TOKENS])
    spec, rule = loaded.decoder.architecture.spec, loaded.decoder.architecture.router
    assert [routed.layer for routed in recorder.seen] == list(range(spec.num_moe_layers))
    for routed in recorder.seen:
        choice = routed.choice
        assert choice.experts.shape == choice.weights.shape == (len(TOKENS), spec.top_k)
        assert choice.scores.shape == (len(TOKENS), spec.num_experts)
        assert all(len(set(row)) == spec.top_k for row in choice.experts.tolist())
        ranked = choice.preference.gather(1, choice.experts)
        assert (ranked[:, :-1] >= ranked[:, 1:]).all(), "best first"
        if rule.scoring == "softmax":
            assert torch.allclose(choice.scores.sum(-1), torch.ones(len(TOKENS)))
        if rule.normalized:
            total = torch.full((len(TOKENS),), rule.factor)
            assert torch.allclose(choice.weights.sum(-1), total)


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_a_gate_can_be_asked_early(name: str) -> None:
    """Applied to its own layer's residual stream, it gives the layer's routing; applied to an
    earlier one, it often predicts it (random weights: better than chance is enough)."""
    loaded = loaded_models.load(stock.saved(name).folder)
    recorder = loaded_models.Recorder(loaded.experts)
    loaded.experts = recorder
    loaded.logits([TOKENS])
    for routed in recorder.seen:
        again = loaded.decoder.gate(routed.layer, routed.residual)
        assert torch.equal(again.experts, routed.choice.experts)
        assert torch.equal(again.weights, routed.choice.weights)
    here, there = recorder.seen[0], recorder.seen[1]
    early = loaded.decoder.gate(there.layer, here.residual).experts.tolist()
    late = there.choice.experts.tolist()
    spec = loaded.decoder.architecture.spec
    found = sum(len(set(a) & set(b)) for a, b in zip(early, late, strict=True))
    assert found / (len(TOKENS) * spec.top_k) > spec.top_k / spec.num_experts


def test_excluded_groups_are_never_chosen() -> None:
    """Group 0 has the best expert and otherwise the worst: by its best it is in, by its best two
    it is out."""
    logits = torch.tensor([[9.0, -9.0, 5.0, 4.0, 1.0, 0.0]])
    weight = torch.eye(6)
    by_best = RouterRule(2, "softmax", False, groups=3, top_groups=1, group_score="max")
    by_two = RouterRule(2, "sigmoid", False, groups=3, top_groups=1, group_score="best-two")
    assert Router(by_best, weight)(logits).experts.tolist()[0] == [0, 1]
    assert Router(by_two, weight)(logits).experts.tolist()[0] == [2, 3]


def by_expert(experts: torch.Tensor, weights: torch.Tensor, count: int) -> torch.Tensor:
    """[tokens, experts] with 0 where a token does not go: whatever order the choice came in."""
    return torch.zeros(len(experts), count, dtype=weights.dtype).scatter(1, experts, weights)


def stock_router(layer: Any) -> Any:
    block = layer.mlp if hasattr(layer, "mlp") else layer.block_sparse_moe
    return block.router if hasattr(block, "router") else block.gate


@pytest.mark.parametrize("name", stock.ALL)
def test_in_bf16_a_router_rounds_where_the_stock_router_does(name: str) -> None:
    """Within fp32's rounding (weights are summed in another order) and in the same precision:
    which products and weights are in fp32 shows here, not in logits, which bf16 blurs anyway."""
    folder = stock.saved(name).folder
    decoder = load_decoder(open_model(folder), "bf16")
    layer = decoder.architecture.spec.moe_layers[-1]
    theirs = stock_router(stock.reload(folder, torch.bfloat16).model.layers[layer])
    block = decoder.layers[layer].feed_forward
    assert isinstance(block, MoeBlock)
    hidden = torch.randn(64, 32, generator=torch.Generator().manual_seed(3)).bfloat16()
    with torch.inference_mode():
        logits, weights, experts = theirs(hidden)
        choice = block.router(hidden)
    count = logits.shape[-1]
    expected = by_expert(experts, weights, count)
    got = by_expert(choice.experts, choice.weights, count)
    assert got.dtype == expected.dtype
    assert (got.float() - expected.float()).abs().max() < 1e-6


def test_a_choice_may_be_made_for_several_layers_at_once() -> None:
    """As looking ahead does: logits [tokens, layers, experts]."""
    logits = torch.randn(5, 4, 6, generator=torch.Generator().manual_seed(4))
    bias = torch.randn(4, 6, generator=torch.Generator().manual_seed(5))
    plain = RouterRule(3, "softmax", True)
    grouped = RouterRule(2, "sigmoid", True, 2.0, groups=3, top_groups=2, group_score="best-two")
    halves = RouterRule(2, "softmax", False, groups=2, top_groups=1)
    nothing: list[torch.Tensor | None] = [None] * 4
    for rule, biases in ((plain, nothing), (halves, nothing), (grouped, list(bias))):
        together = choose(rule, logits, None if biases[0] is None else bias)
        for layer, own in enumerate(biases):
            alone = choose(rule, logits[:, layer], own)
            assert torch.equal(together.experts[:, layer], alone.experts)
            for part, same in zip(together[1:4], alone[1:4], strict=True):
                assert torch.allclose(part[:, layer], same, rtol=0, atol=1e-6)


def test_weights_are_scaled_by_the_factor() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0]])
    once, twice = (choose(RouterRule(2, "softmax", True, f), logits, None) for f in (1.0, 2.0))
    assert torch.equal(twice.weights, 2 * once.weights)


def test_an_expert_of_an_excluded_group_has_no_weight() -> None:
    """Three experts are wanted and the one allowed group has two, as the stock router computes."""
    rule = RouterRule(3, "softmax", False, groups=3, top_groups=1)
    choice = choose(rule, torch.tensor([[9.0, 8.0, 5.0, 4.0, 1.0, 0.0]]), None)
    assert choice.experts[0, :2].tolist() == [0, 1]
    assert choice.weights[0, 2] == 0.0


def test_one_of_two_groups_is_excluded() -> None:
    rule = RouterRule(2, "softmax", False, groups=2, top_groups=1)
    assert choose(rule, torch.tensor([[9.0, 0.0, 8.0, 8.0]]), None).experts.tolist() == [[0, 1]]


def test_an_excluded_group_stays_out_where_the_bias_makes_all_others_negative() -> None:
    rule = RouterRule(2, "sigmoid", False, groups=3, top_groups=1, group_score="best-two")
    logits, bias = torch.tensor([[9.0, 8.0, 5.0, 4.0, 1.0, 0.0]]), torch.full((6,), -5.0)
    assert choose(rule, logits, bias).experts.tolist() == [[0, 1]]


def test_scores_that_are_all_zero_have_weights() -> None:
    choice = choose(RouterRule(2, "sigmoid", True), torch.full((1, 4), -200.0), None)
    assert choice.scores.max() == 0
    assert choice.weights.tolist() == [[0.0, 0.0]]
