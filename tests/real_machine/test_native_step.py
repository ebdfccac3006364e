"""Does the native decode step compute what PyTorch computes, layer by layer?"""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
import torch

import stock
from made_up import in_turns
from moesaic.kernels.instruction_sets import REFERENCE, available
from scattered_blocks import scatter

native = pytest.mark.skipif(available() == (REFERENCE,), reason="no native kernels here")
pytestmark = native
if available() != (REFERENCE,):
    from native_decoding import Layerwise, Native, both, both_of

    from moesaic.machines.cpu_step.native_step import Forced
    from moesaic.machines.real.forward_pass import ForwardPass, Piece
    from moesaic.machines.support import ExecutorKind, refusal
    from moesaic.model_info.features import Feature, features_of
    from moesaic.model_info.network import GroupedAttentionSpec
    from moesaic.models.open_model import open_model

ISAS = [name for name in available() if name != REFERENCE]
BATCHES = ([0, 1, 2], [2], [1, 0], [0, 1, 2, 3])
# Relative to the norm of the logits. bf16 keeps 8 bits, and these networks of three layers round
# some dozen times on the way; a wrong scale, bias or position gives 0.1 to 1 in every step.
TYPICAL, LARGEST = 0.03, 0.1
# Of int8 and int4, with a scale for 256 and 32 weights, in every matrix of a network this narrow.
CLOSE_IN = {"bf16": LARGEST, "int8": 0.1, "int4": 0.6}


def error(ours: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest of any token."""
    differences = (ours.float() - expected.float()).norm(dim=-1) / expected.float().norm(dim=-1)
    return float(differences.max())


@pytest.mark.parametrize(("family", "isa"), in_turns([*stock.FAMILIES], ISAS))
def test_every_family_as_layer_by_layer(family: str, isa: str) -> None:
    """With the same routing, since two experts may be equally good but for rounding; batches of
    sequences of different lengths, long enough for attention in several parts."""
    network = open_model(stock.saved(family).folder).architecture.network
    if (why := refusal(ExecutorKind.CPU_STEP, network)) is not None:
        pytest.skip(f"runs layer by layer: {why}")
    expected, ours = both(family, slots=4, isa=isa)
    random, errors = torch.Generator().manual_seed(0), []
    for number in range(75):
        slots = [0, 1] if number < 65 else BATCHES[number % len(BATCHES)]
        tokens = torch.randint(0, 97, (len(slots),), generator=random).tolist()
        logits = expected.step(tokens, [(slot, 1) for slot in slots])
        result = ours.step(tokens, slots, forced=expected.routing())
        errors.append(error(result.logits, logits))
        scores = torch.stack([choice.scores for choice in expected.choices])
        torch.testing.assert_close(result.scores, scores, atol=0.05, rtol=0.0)
    assert median(errors) < TYPICAL
    assert max(errors) < LARGEST
    for part in ("first", "second"):
        there, wanted = getattr(ours.cache, part).float(), getattr(expected.cache, part).float()
        assert float((there - wanted).norm() / wanted.norm()) < LARGEST


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("family", ["qwen2-moe", "deepseek-v2"])
def test_as_many_sequences_as_servers_have(family: str, isa: str) -> None:
    """More than one tile's tokens, more rows than a few workers add up at once."""
    many = [*range(70)]
    expected, ours = both(family, slots=len(many), isa=isa)
    random, errors = torch.Generator().manual_seed(0), []
    for _ in range(4):
        tokens = torch.randint(0, 97, (len(many),), generator=random).tolist()
        logits = expected.step(tokens, [(slot, 1) for slot in many])
        errors.append(error(ours.step(tokens, many, forced=expected.routing()).logits, logits))
    assert max(errors) < LARGEST
    chosen = ours.step(tokens, many)
    best = chosen.preference.topk(chosen.ids.shape[-1]).indices
    assert torch.equal(chosen.ids.sort().values, best.sort().values)


@pytest.mark.parametrize(
    ("family", "isa"), [(family, isa) for family in ("qwen3-moe", "deepseek-v2") for isa in ISAS]
)
def test_a_kv_cache_in_int8_as_layer_by_layer(family: str, isa: str) -> None:
    """PyTorch writes the codes that native attention reads, and the other way round."""
    model = open_model(stock.saved(family).folder)
    expected = Layerwise(model, slots=2, kv_dtype="int8")
    ours, exact = (Native(model, slots=2, isa=isa, kv_dtype=kv) for kv in ("int8", "auto"))
    errors, differences = [], []
    for token in range(75):
        logits = expected.step([token, 5], [(0, 1), (1, 1)])
        result = ours.step([token, 5], [0, 1], forced=expected.routing())
        errors.append(error(result.logits, logits))
        differences.append(
            error(exact.step([token, 5], [0, 1], forced=expected.routing()).logits, result.logits)
        )
    assert median(errors) < TYPICAL
    assert max(errors) < 2 * LARGEST, "a value that bf16 moves a little may get the next code"
    assert median(differences) > 1e-4, "rounding shows"
    for mine, theirs in zip(ours.cache.parts, expected.cache.parts, strict=True):
        there, wanted = mine.float(), theirs.float()
        assert float((there - wanted).norm() / wanted.norm()) < LARGEST
    for part, other in zip(expected.cache.parts, ours.cache.parts, strict=True):
        part.copy_(other)
    logits = expected.step([9, 5], [(0, 1), (1, 1)])
    assert error(ours.step([9, 5], [0, 1], forced=expected.routing()).logits, logits) < LARGEST


@pytest.mark.parametrize("kv_dtype", ["auto", "int8"])
@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v2"])
def test_bits_do_not_depend_on_where_blocks_lie(family: str, kv_dtype: str) -> None:
    model = open_model(stock.saved(family).folder)
    results = list[torch.Tensor]()
    for scattered in (False, True):
        ours = Native(model, slots=2, kv_dtype=kv_dtype)
        if scattered:
            scatter(ours.cache)
        steps = [ours.step([number % 97, 5], [0, 1]).logits for number in range(150)]
        results.append(torch.cat(steps))
    assert torch.equal(*results)


def test_layers_whose_attention_and_rotation_differ() -> None:
    """The second of three layers turns slower, over half of a head, and norms no heads."""
    model = open_model(stock.saved("qwen3-moe").folder)
    network = model.architecture.network
    layer = network.layers[1]
    assert isinstance(layer.attention, GroupedAttentionSpec)
    rope = replace(layer.attention.rope, theta=50.0, dim=layer.attention.head_dim // 2)
    other = replace(layer.attention, rope=rope, qk_norm=None, scale=0.3)
    layers = (network.layers[0], replace(layer, attention=other), network.layers[2])
    changed = replace(network, layers=layers)
    assert refusal(ExecutorKind.CPU_STEP, changed) is None
    assert {Feature.SEVERAL_ROPES, Feature.SEVERAL_ATTENTIONS} < features_of(changed).keys()
    architecture = replace(model.architecture, network=changed)
    expected, ours = both_of(model._replace(architecture=architecture), slots=2)
    plain, _ = both_of(model, slots=2)
    errors, differences = [], []
    for token in range(40):
        logits = expected.step([token, 5], [(0, 1), (1, 1)])
        result = ours.step([token, 5], [0, 1], forced=expected.routing())
        errors.append(error(result.logits, logits))
        differences.append(error(plain.step([token, 5], [(0, 1), (1, 1)]), logits))
    assert median(errors) < TYPICAL
    assert max(errors) < LARGEST
    assert median(differences) > LARGEST, "the change is one that shows"


@pytest.mark.parametrize("family", ["qwen3-moe", "deepseek-v2"])
@pytest.mark.parametrize("precisions", ["int8/bf16", "int4/bf16", "bf16/int8"])
def test_quantised_weights(family: str, precisions: str) -> None:
    dense, experts = precisions.split("/")
    expected, ours = both(family, slots=2, dense=dense, experts=experts)
    for token in (3, 9):
        logits = expected.step([token, 5], [(0, 1), (1, 1)])
        result = ours.step([token, 5], [0, 1], forced=expected.routing())
        assert error(result.logits, logits) < max(CLOSE_IN[dense], CLOSE_IN[experts])


@pytest.mark.parametrize("family", ["qwen3-moe", "glm-4.5", "deepseek-v2"])
def test_the_router_chooses_what_its_own_scores_say(family: str) -> None:
    expected, ours = both(family, slots=3)
    same = total = 0
    for token in range(20):
        expected.step([token, 1, 2], [(0, 1), (1, 1), (2, 1)])
        result = ours.step([token, 1, 2], [0, 1, 2])
        chosen = torch.stack([choice.experts for choice in expected.choices])
        same += int((result.ids == chosen).sum())
        total += chosen.numel()
        order = result.preference.gather(-1, result.ids)
        assert bool((order[..., :-1] >= order[..., 1:]).all())
    assert same > 0.9 * total


def test_a_token_may_use_fewer_experts() -> None:
    expected, ours = both("qwen3-moe", slots=2)
    counts = torch.tensor([1, 3])
    for token in (3, 4):
        logits = expected.step([token, 8], [(0, 1), (1, 1)], counts)
        result = ours.step([token, 8], [0, 1], counts)
        chosen = torch.stack([choice.experts for choice in expected.choices])
        assert torch.equal(result.ids, chosen)
        weights = torch.stack([choice.weights.float() for choice in expected.choices])
        torch.testing.assert_close(result.weights, weights, atol=0.03, rtol=0.0)
        assert error(result.logits, logits) < LARGEST


def test_a_row_does_not_depend_on_the_number_of_workers() -> None:
    model = open_model(stock.saved("qwen3-moe").folder)
    outs = []
    for threads in (1, 2, 5):
        ours = Native(model, 1, threads=threads)
        outs.append([ours.step([token], [0]).logits for token in range(6)])
    for other in outs[1:]:
        assert all(map(torch.equal, outs[0], other))


def at_start(tokens: tuple[int, ...], slots: tuple[int, ...]) -> ForwardPass:
    pieces = zip(slots, tokens, strict=True)
    return ForwardPass([Piece(slot, [token], first=0) for slot, token in pieces])


def test_what_is_out_of_bounds_is_refused_before_anything_is_written() -> None:
    model = open_model(stock.saved("mixtral").folder)
    ours = Native(model, 2)
    for tokens, slots in (((97,), (0,)), ((-1,), (0,)), ((1,), (2,)), ((1, 2), (0, 0))):
        with pytest.raises(ValueError, match=r"no such|one new token"):
            ours.native.run(at_start(tokens, slots))
    assert not ours.cache.first.any()
    ours.cache.advance(0, ours.cache.max_length)
    with pytest.raises(ValueError, match="full"):
        ours.step([1], [0])


def test_a_routing_or_counts_of_another_step_are_refused() -> None:
    """The native call would read beyond their end."""
    ours = Native(open_model(stock.saved("mixtral").folder), 2)
    tokens = at_start((1, 2), (0, 1))
    result = ours.native.run(tokens)
    experts, weights = result.ids.numpy(), result.weights.numpy()
    assert ours.native.run(tokens, forced=Forced(experts, weights)) is not None
    narrow, single = experts[..., :1].copy(), experts[:, :1].copy()
    for ids, given in ((narrow, weights), (single, weights), (experts, weights[:, :1].copy()),
                       (experts.astype("int32"), weights), (experts.T, weights)):  # fmt: skip
        with pytest.raises(ValueError, match="a replayed routing is"):
            ours.native.run(tokens, forced=Forced(ids, given))
    for counts in (torch.tensor([1]), torch.tensor([1, 1], dtype=torch.int32)):
        with pytest.raises(ValueError, match="one count of experts"):
            ours.native.run(tokens, counts)


@pytest.mark.parametrize("family", ["olmoe", "deepseek-v2", "qwen2-moe"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_with_its_token(family: str, value: float) -> None:
    """And is seen in its logits: nothing on the way hides it."""
    model = open_model(stock.saved(family).folder)
    ours, fine = Native(model, 3), Native(model, 3)
    ours.decoder.embedding[5, 3] = value
    result, expected = ours.step([4, 5, 6], [0, 1, 2]), fine.step([4, 5, 6], [0, 1, 2])
    assert bool(result.logits[1].isnan().any())
    for row in (0, 2):
        assert torch.equal(result.logits[row], expected.logits[row])
