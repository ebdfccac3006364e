"""Does a captured decode step say what the network says on the CPU? Needs a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from gpu_decoding import DecodingScene, cpu_logits, small_architecture
from graph_models import shrunk

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
    want, choices = cpu_logits(scene, tokens)
    for position, token in enumerate(tokens):
        got = scene.decode([token], [position], [choices[position]])[0]
        assert relative(got, want[position]) < 0.03, position
    scene.close()


@pytest.mark.parametrize("dense", ["int8", "int4", "head=int4+attention=int8"])
@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "qwen1.5-moe-a2.7b", "deepseek-v2-lite"])
def test_dense_weights_in_integers(name: str, dense: str) -> None:
    """One token's fused products, with biases and shared experts, and latent attention's."""
    policies = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="impact")
    scene = DecodingScene(shrunk(name), policies, "bf16", slots=20, dense=dense)
    tokens = [3, 77, 500, 12, 9, 801]
    want, choices = cpu_logits(scene, tokens)
    for position, token in enumerate(tokens):
        got = scene.decode([token], [position], [choices[position]])[0]
        assert relative(got, want[position]) < 0.03, position
    scene.close()


def test_sequences_of_a_batch_do_not_meet() -> None:
    """Four sequences; each says what it says alone."""
    policies = PolicySet.of(schedule="hybrid", cache="mrs", prefetch="impact")
    scene = DecodingScene(small_architecture(), policies, "bf16", slots=20, batch=4)
    streams = [[5, 6, 7], [100, 200, 300], [9, 9, 9], [42, 1, 2]]
    alone = [cpu_logits(scene, tokens) for tokens in streams]
    for position in range(3):
        tokens = [stream[position] for stream in streams]
        got = scene.decode(tokens, [position] * 4, [choices[position] for _, choices in alone])
        for row, (want, _) in enumerate(alone):
            assert relative(got[row], want[position]) < 0.03, (row, position)
    scene.close()


@pytest.mark.parametrize("batch", [1, 4])
def test_routers_choose_as_on_the_cpu(batch: int) -> None:
    """The first token's first layer: before rounding can have changed anything much."""
    policies = PolicySet.of(schedule="static-experts", cache="pinned", prefetch="none")
    architecture = small_architecture()
    spec = replace(architecture.spec, num_layers=1, moe_layers=(0,))
    one_layer = replace(architecture, spec=spec, network=architecture.network.first(1))
    scene = DecodingScene(one_layer, policies, "bf16", slots=8, batch=batch, own_routers=True)
    same = 0
    for token in range(20):
        tokens = [(token * 37 + 11 * row) % 1000 for row in range(batch)]
        scene.decode(tokens, [0] * batch)
        for row in range(batch):
            _, ((chosen,),) = cpu_logits(scene, [tokens[row]])
            box = scene.mailbox
            if box["ranked"][row].tolist() != chosen[0].tolist():
                continue  # near ties
            same += 1
            assert box["ids"][row].tolist() == chosen[0][: spec.top_k].tolist()
            assert torch.allclose(box["scores"][row], chosen[1], atol=0.01)
            assert torch.allclose(box["weights"][row], chosen[2], atol=0.01)
    assert same > 10 * batch
    scene.close()


def relative(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got.double() - want.double()).norm() / want.double().norm())
