"""Does a captured decode step say what the network says on the CPU? Needs a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from gpu_decoding import DecodingScene, cpu_logits, small_architecture

from moesaic.policies.policy_set import PolicySet

SYSTEMS = [
    ("hybrid", "mrs", "impact"),
    ("best-split", "lru", "next-layer"),
    ("gpu-only", "lfu", "none"),
    ("static-experts", "pinned", "none"),
]


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("names", SYSTEMS)
def test_a_token_is_the_same_wherever_its_experts_are(
    names: tuple[str, str, str], dtype: str
) -> None:
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2])
    scene = DecodingScene(small_architecture(), policies, dtype, slots=20)
    tokens = [3, 77, 500, 12, 9, 801, 4, 4, 65, 300]
    want = cpu_logits(scene, tokens)
    for position, token in enumerate(tokens):
        got = scene.decode([token], [position])[0]
        error = (got.double() - want[position].double()).norm() / want[position].double().norm()
        assert error < 0.03, (position, float(error))
    scene.close()


def test_sequences_of_a_batch_do_not_meet() -> None:
    """Four sequences of different lengths; each says what it says alone."""
    policies = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="impact")
    scene = DecodingScene(small_architecture(), policies, "bf16", slots=20, batch=4)
    streams = [[5, 6, 7], [100, 200, 300], [9, 9, 9], [42, 1, 2]]
    want = [cpu_logits(scene, tokens) for tokens in streams]
    for position in range(3):
        got = scene.decode([stream[position] for stream in streams], [position] * 4)
        for row in range(4):
            expected = want[row][position].double()
            assert (got[row].double() - expected).norm() / expected.norm() < 0.03, (row, position)
    scene.close()


def test_a_replayed_choice_is_followed() -> None:
    architecture = small_architecture()
    policies = PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none")
    one = DecodingScene(architecture, policies, "bf16", slots=20)
    layers, ranks = architecture.spec.num_moe_layers, one.mailbox.shape.ranks
    ranked = torch.arange(ranks).expand(layers, 1, ranks).clone()
    scores = torch.full((layers, 1, ranks), 1 / 16)
    weights = torch.full((layers, 1, architecture.spec.top_k), 0.25)
    other = replace_choice(one, ranked, scores, weights)
    assert not torch.allclose(one.decode([7], [0]), other.decode([7], [0]))
    box = other.mailbox
    assert box["ids"][0].tolist() == list(range(architecture.spec.top_k))
    one.close()
    other.close()


def replace_choice(
    scene: DecodingScene, ranked: torch.Tensor, scores: torch.Tensor, weights: torch.Tensor
) -> DecodingScene:
    parts = (ranked.cuda(), scores.cuda(), weights.cuda())
    return DecodingScene(
        replace(scene.architecture), scene.policies, "bf16", slots=20, replayed=parts
    )
