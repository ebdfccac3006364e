"""Are losses, updates and rates what their formulas say?"""

from __future__ import annotations

import math

import pytest
import torch
from small_recipes import RECIPE, SHAPE, random_network
from training.attention import Masked
from training.fast_paths import find_paths
from training.losses import leaning, losses, surprise, unevenness
from training.network import Network, Routing
from training.optimiser import Optimisers, Plan, orthogonal, rate_factor
from training.products import grouped, looped
from training.recipe import Learning
from training.step import tame


def test_surprise_weighs_every_token() -> None:
    tokens = torch.tensor([[0, 1, 2, 0]])
    logits = torch.zeros(1, 4, 3)
    logits[0, 0, 1] = 5.0  # knows that 1 follows
    counts = torch.tensor([[9.0, 1.0, 0.1, 0.0]])
    known = -math.log(math.exp(5) / (math.exp(5) + 2))
    assert float(surprise(logits, tokens, counts)) == pytest.approx(
        (known + 0.1 * math.log(3)) / 1.1, rel=1e-5
    )


def test_even_routing_costs_one_and_a_single_favourite_costs_all() -> None:
    even = Routing(torch.zeros(8, 4), torch.arange(8).remainder(4).unsqueeze(1))
    assert float(unevenness(even)) == pytest.approx(1.0)
    crowded = Routing(torch.tensor([[50.0, 0, 0, 0]]).expand(8, 4), torch.zeros(8, 1).long())
    assert float(unevenness(crowded)) == pytest.approx(4.0)


def test_leaning_on_one_expert_costs_all_and_on_none_an_even_share() -> None:
    both = torch.tensor([[0, 1]] * 3)
    even = Routing(torch.tensor([[2.0, 2.0, -9.0]] * 3), both)
    assert float(leaning(even)) == pytest.approx(0.5)
    one = Routing(torch.tensor([[30.0, 0.0, -9.0]] * 3), both)
    assert float(leaning(one)) == pytest.approx(1.0)


def test_the_total_adds_what_keeps_routers_in_shape() -> None:
    routing = Routing(torch.zeros(8, 4), torch.arange(8).remainder(4).unsqueeze(1))
    learning = Learning(balance=0.5, router_z=0.1, concentration=0.2)
    found = losses(torch.tensor(2.0), [routing] * 2, learning)
    assert float(found.router_z) == pytest.approx(math.log(4) ** 2)
    assert float(found.total) == pytest.approx(2.5 + 0.1 * math.log(4) ** 2 + 0.2)


def test_orthogonal_matrices_have_singular_values_near_one() -> None:
    torch.manual_seed(0)
    for shape in ((3, 32, 16), (16, 64), (2, 3, 24, 24)):
        values = torch.linalg.svdvals(orthogonal(torch.randn(shape)).float())
        assert values.max() < 1.3
        assert values.mean() > 0.7


def test_every_weight_is_learned_and_rates_are_followed() -> None:
    network = Network(SHAPE)
    optimisers = Optimisers(network, RECIPE.learning)
    before = {name: weight.detach().clone() for name, weight in network.named_parameters()}
    for weight in network.parameters():
        weight.grad = torch.randn_like(weight)
    optimisers.step(0.0)
    assert all(torch.equal(weight, before[name]) for name, weight in network.named_parameters())
    for weight in network.parameters():
        weight.grad = torch.randn_like(weight)
    optimisers.step(1.0)
    for name, weight in network.named_parameters():
        moved = (weight - before[name]).square().mean().sqrt().item()
        assert 1e-4 < moved < 2e-2, name


def test_gradients_are_scaled_and_a_bad_one_costs_a_step_only() -> None:
    gradients = [torch.full((4,), 3.0), torch.full((4,), 4.0)]
    assert float(tame(gradients, 1.0)) == pytest.approx(10.0)
    assert float(torch.stack(gradients).norm()) == pytest.approx(1.0, rel=1e-4)
    small = [torch.full((4,), 0.1)]
    tame(small, 1.0)
    assert small[0][0] == pytest.approx(0.1)
    bad = [torch.tensor([1.0, float("nan")]), torch.tensor([float("inf"), 2.0])]
    tame(bad, 1.0)
    assert all(bool((gradient == 0).all()) for gradient in bad)


def test_rates_rise_stay_and_fall() -> None:
    learning = Learning(warm_up=0.1, decay=0.4)
    assert rate_factor(0.0, learning) < 0.01
    assert rate_factor(0.05, learning) == pytest.approx(0.5, abs=0.01)
    assert rate_factor(0.3, learning) == 1.0
    assert rate_factor(0.8, learning) == pytest.approx(0.5)
    assert rate_factor(1.0, learning) == 0.0


def test_progress_is_of_steps_or_of_time() -> None:
    assert Plan(100).progress(25, 9999.0) == 0.25
    assert Plan(100, minutes=2.0).progress(99, 30.0) == 0.25
    assert Plan(100).progress(101, 0.0) == 1.0


def test_paths_that_do_not_work_here_are_not_taken() -> None:
    paths = find_paths(torch.device("cpu"), torch.float32)
    assert not paths.packed  # FlashAttention wants a GPU
    assert paths.product in (grouped, looped)
    assert any("packed attention: no" in note for note in paths.notes)


def test_fewer_experts_change_the_result() -> None:
    network = random_network()
    tokens = torch.arange(20).unsqueeze(0)
    seen = Masked(torch.ones(1, 1, 20, 20).tril().bool())
    with torch.no_grad():
        full, routings = network(tokens, seen)
        network.use_top_k(2)
        half, fewer = network(tokens, seen)
    assert routings[0].chosen.shape[1] == 4
    assert fewer[0].chosen.shape[1] == 2
    assert not torch.allclose(full, half, atol=1e-2)
