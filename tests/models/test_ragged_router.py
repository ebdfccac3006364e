"""Does a token that uses fewer experts get what a model with so many experts per token gives?"""

from __future__ import annotations

from dataclasses import replace

import loaded_models
import pytest
import torch

import stock
from moesaic.core.routing import UNUSED
from moesaic.model_info.network import RouterRule
from moesaic.models.experts.router import choose

EXPERTS = 24
RULES = {
    "normalised": RouterRule(8, "softmax", True, round_weights=True),
    "as scored": RouterRule(8, "softmax", False),
    "scaled": RouterRule(
        6, "softmax", False, factor=16.0, in_fp32=True, groups=4, top_groups=2, group_score="max"
    ),
    "sigmoid, normalised, scaled": RouterRule(
        4, "sigmoid", True, factor=2.5, in_fp32=True, correction_bias=True
    ),
    "sigmoid in groups": RouterRule(
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", RULES)
def test_rows_are_those_of_narrower_routers(name: str, dtype: torch.dtype) -> None:
    rule, generator = RULES[name], torch.Generator().manual_seed(1)
    order = torch.rand(40, EXPERTS, generator=generator).argsort()
    logits = (order / 4).to(dtype)  # no ties: torch breaks them by how many it is asked for
    bias = torch.randn(EXPERTS, generator=generator) if rule.correction_bias else None
    counts = torch.arange(40) % rule.top_k + 1
    got = choose(rule, logits, bias, counts)
    assert got.experts.shape == got.weights.shape == (40, rule.top_k)
    assert torch.equal(counts, got.counts if got.counts is not None else counts[:0])
    for row, count in enumerate(counts.tolist()):
        alone = choose(replace(rule, top_k=count), logits[row : row + 1], bias)
        assert torch.equal(got.experts[row, :count], alone.experts[0])
        # A sum with zeros behind it may be taken in another order.
        torch.testing.assert_close(got.weights[row, :count], alone.weights[0], rtol=3e-7, atol=0)
        assert (got.experts[row, count:] == UNUSED).all()
        assert not got.weights[row, count:].any()


def test_all_of_top_k_is_the_plain_choice() -> None:
    rule, logits = RULES["normalised"], torch.randn(3, EXPERTS)
    whole, plain = choose(rule, logits, None, torch.full((3,), 8)), choose(rule, logits, None)
    assert torch.equal(whole.experts, plain.experts)
    assert torch.equal(whole.weights, plain.weights)
    assert plain.counts is None


@pytest.mark.parametrize("name", ["olmoe", "qwen3-moe", "deepseek-v2", "glm-4.5"])
def test_a_model_is_narrow_for_some_tokens_and_whole_for_others(name: str) -> None:
    """Two sequences in one pass: one with two experts per token, one with all."""
    folder, tokens = stock.saved(name).folder, [list(range(3, 20)), list(range(40, 51))]
    both = loaded_models.load(folder, slots=2)
    whole, narrow = loaded_models.load(folder), loaded_models.load(folder, top_k=2)
    k = both.decoder.architecture.spec.top_k
    got = both.logits(tokens, counts=[2] * 17 + [k] * 11)
    expected = [narrow.logits(tokens[:1])[0], whole.logits(tokens[1:])[0]]
    for ragged, plain in zip(got, expected, strict=True):
        assert (ragged - plain).abs().max() < 1e-4
    other = loaded_models.load(folder).logits(tokens[:1])[0]
    assert (got[0] - other).abs().max() > 1e-2, "the comparison would say nothing"


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_single_token(count: int) -> None:
    """Decoding one sequence takes other paths."""
    folder = stock.saved("olmoe").folder
    ragged, narrow = loaded_models.load(folder), loaded_models.load(folder, top_k=count)
    for token in (7, 90, 33):
        (got,), (expected,) = ragged.logits([[token]], counts=[count]), narrow.logits([[token]])
        assert (got - expected).abs().max() < 1e-4
