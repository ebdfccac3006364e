"""Do prompts mean the same where norms, rotation and routers of many tokens are native?"""

from __future__ import annotations

import pytest
import torch
from reference_experts import reference_experts

import stock
from moesaic.kernels.instruction_sets import REFERENCE, available, choose
from moesaic.kernels.rotated_heads import Angles, HeadNorms
from moesaic.model_info.network import GroupedAttentionSpec, Rope
from moesaic.models.attentions import grouped_attention
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.attentions.rope import Rotation, rotate
from moesaic.models.decoder import Decoder
from moesaic.models.experts.expert_service import ResidentExperts, RoutedTokens
from moesaic.models.experts.router import Choice
from moesaic.models.norm import RmsNorm
from moesaic.models.open_model import load_decoder, open_model
from moesaic.models.token_batch import Segment
from stock_text import prompt

pytestmark = pytest.mark.skipif(available() == (REFERENCE,), reason="no native kernels here")
if available() != (REFERENCE,):
    from moesaic.kernels import native_linear
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.model_info.dense_bytes import DensePrecision

NEVER = 1 << 30
SEGMENTS = [Segment(0, 40), Segment(1, 24)]


def dense() -> DenseRunner:
    return DenseRunner(DensePrecision.of("bf16"), choose())


class Listening:
    """Reference experts; keeps what the routers chose."""

    def __init__(self, experts: ResidentExperts) -> None:
        self.experts, self.choices = experts, list[Choice]()

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        self.choices.append(routed.choice)
        return self.experts.compute(routed)


def read(
    decoder: Decoder, experts: ResidentExperts, counts: torch.Tensor | None = None
) -> tuple[torch.Tensor, list[Choice]]:
    """Hidden states of two prompts, and every layer's routing."""
    tokens = torch.tensor(prompt(40, seed=1) + prompt(24, seed=2))
    cache = BlockCache(decoder.architecture.spec, 2, 64, decoder.dtype)
    listening = Listening(experts)
    return decoder.forward(tokens, SEGMENTS, cache, listening, counts), listening.choices


@pytest.fixture
def pytorch(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """With `undo`, native again."""
    monkeypatch.setattr(native_linear, "MIN_ROWS", NEVER)
    monkeypatch.setattr(grouped_attention, "NATIVE_ROWS", NEVER)
    return monkeypatch


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_every_family_reads_a_prompt_as_with_pytorch(
    name: str, pytorch: pytest.MonkeyPatch
) -> None:
    model = open_model(stock.saved(name).folder)
    decoder = load_decoder(model, "bf16", dense=dense())
    experts = reference_experts(model)
    wanted, chosen = read(decoder, experts)
    pytorch.undo()
    got, choices = read(decoder, experts)
    errors = (got - wanted).float().norm(dim=-1) / wanted.float().norm(dim=-1)
    assert float(errors.median()) < 0.02, "of hidden states; a router that flips moves some more"
    first, like = choices[0], chosen[0]
    assert first.experts.shape == like.experts.shape
    same = (first.experts.sort(-1).values == like.experts.sort(-1).values).all(-1)
    assert float(same.float().mean()) > 0.9
    for part, other in ((first.scores, like.scores), (first.preference, like.preference)):
        both = torch.where(other.isfinite(), part - other, (part != other).float())
        assert float(both[same].abs().max()) < 0.02


@pytest.mark.parametrize("name", ["qwen3-moe", "olmoe", "mixtral"])
def test_it_is_native_where_a_network_is_packed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = open_model(stock.saved(name).folder)
    decoder = load_decoder(model, "bf16", dense=dense())
    called = {"norm": 0, "heads": 0, "route": 0}

    class Counting:
        def __init__(self, runner: object) -> None:
            self.runner = runner

        def __getattr__(self, method: str) -> object:
            called[method] += 1
            return getattr(self.runner, method)

    assert decoder.dense is not None
    rows = decoder.dense.rows
    monkeypatch.setattr(rows, "runner", Counting(rows.runner))
    read(decoder, reference_experts(model))
    layers = decoder.architecture.spec.num_layers
    first = decoder.architecture.network.layers[0].attention
    assert isinstance(first, GroupedAttentionSpec)
    clipped = first.clip is not None
    assert called["route"] == layers
    assert called["heads"] == (0 if clipped else layers)
    assert called["norm"] >= layers + 1


def test_tokens_may_use_fewer_experts(pytorch: pytest.MonkeyPatch) -> None:
    model = open_model(stock.saved("qwen3-moe").folder)
    decoder = load_decoder(model, "bf16", dense=dense())
    experts = reference_experts(model)
    counts = torch.arange(64) % model.architecture.router.top_k + 1
    _, chosen = read(decoder, experts, counts)
    pytorch.undo()
    _, choices = read(decoder, experts, counts)
    first, like = choices[0], chosen[0]
    assert torch.equal(first.experts == -1, like.experts == -1)
    assert not first.weights[first.experts == -1].any()
    assert float((first.weights.sum(-1) - like.weights.float().sum(-1)).abs().max()) < 0.02
    assert first.counts is not None
    assert torch.equal(first.counts, counts)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_reaches_its_sequence_alone(value: float) -> None:
    model = open_model(stock.saved("qwen3-moe").folder)
    decoder = load_decoder(model, "bf16", dense=dense())
    tokens = prompt(40, seed=1)
    damaged = decoder.embedding.clone()
    only = next(token for token in tokens if token not in prompt(24, seed=2))
    damaged[only, 3] = value
    decoder.embedding = damaged
    hidden, _ = read(decoder, reference_experts(model))
    at = tokens.index(only)
    assert hidden[at:40].isnan().any(-1).all()
    assert hidden[:at].isfinite().all()
    assert hidden[40:].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16], ids=str)
def test_norms_of_rows_of_any_stride(dtype: torch.dtype, pytorch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    norm = RmsNorm((1 + 0.1 * torch.randn(72)).to(dtype), 1e-6, dense())
    rows = torch.randn(50, 100).to(dtype)[:, 5:77]
    cases = (rows, rows.contiguous(), rows.contiguous().view(25, 2, 72))
    wanted = [norm(x) for x in cases]
    pytorch.undo()
    close = {torch.bfloat16: 0.01, torch.float16: 0.002, torch.float32: 1e-5}[dtype]
    for x, like in zip(cases, wanted, strict=True):
        got = norm(x)
        assert got.dtype == dtype
        assert got.shape == like.shape
        assert torch.allclose(got.float(), like.float(), rtol=close, atol=1e-6)
        assert torch.equal(got.view(50, 72)[:16], norm(x.reshape(50, 72)[:16])), "not its batch"


def test_a_sum_and_its_norm(pytorch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    norm = RmsNorm((1 + 0.1 * torch.randn(64)).bfloat16(), 1e-6, dense())
    x, added = torch.randn(2, 40, 64).bfloat16()
    total, normed = norm.after_adding(x, added)
    pytorch.undo()
    ours, ours_normed = norm.after_adding(x, added)
    assert torch.equal(ours, total)
    assert torch.allclose(ours_normed.float(), normed.float(), rtol=0.01, atol=1e-6)


@pytest.mark.parametrize(("dim", "interleaved"), [(32, False), (16, False), (32, True)])
def test_heads_are_turned_to_the_bit(dim: int, interleaved: bool) -> None:
    torch.manual_seed(0)
    rope = Rope("default", 1e4, dim, interleaved=interleaved)
    query, key = torch.randn(30, 4, 32).bfloat16(), torch.randn(30, 2, 32).bfloat16()
    angles = torch.randn(30, dim // 2) * 3
    turn = Rotation(angles.cos(), angles.sin())
    wanted = [rotate(rope, x, turn) for x in (query, key)]
    sums = dense().rows.heads(query, key, None, Angles(*turn, dim, interleaved))
    assert torch.equal(query, wanted[0])
    assert torch.equal(key, wanted[1])
    assert torch.allclose(sums, key.float().sum((1, 2)), atol=1e-4)


@pytest.mark.parametrize("whole", [False, True])
def test_heads_are_normed_before_they_are_turned(whole: bool, pytorch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    rope = Rope("default", 1e4, 32)
    query, key = torch.randn(30, 4, 32).bfloat16(), torch.randn(30, 2, 32).bfloat16()
    widths = (128, 64) if whole else (32, 32)
    weights = [(1 + 0.1 * torch.randn(width)).bfloat16() for width in widths]
    angles = torch.randn(30, 16) * 3
    turn = Rotation(angles.cos(), angles.sin())
    wanted = []
    for x, weight in zip((query, key), weights, strict=True):
        rows = x.flatten(1) if whole else x
        wanted.append(rotate(rope, RmsNorm(weight, 1e-5)(rows).view(x.shape), turn))
    pytorch.undo()
    norms = HeadNorms(weights[0], weights[1], 1e-5, whole)
    dense().rows.heads(query, key, norms, Angles(*turn, 32, False))
    for got, like in zip((query, key), wanted, strict=True):
        assert torch.allclose(got.float(), like.float(), rtol=0.02, atol=0.03)
        assert float((got == like).float().mean()) > 0.95, "sums in another order round a few apart"


def test_heads_that_cannot_be_turned_in_place_are_refused() -> None:
    rows, angles = dense().rows, Angles(torch.ones(20, 4), torch.ones(20, 4), 8, False)
    good = torch.zeros(20, 2, 8, dtype=torch.bfloat16)
    for bad in (good.float(), good.transpose(1, 2)):
        with pytest.raises(ValueError, match="in place"):
            rows.heads(good, bad, None, angles)
