"""One token, many lengths, every expert, unused experts, tied scores: on the real machine, with
experts moving all the time. Tolerance as in test_placements.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import stock
from made_up import in_turns
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.routing import ExpertId, LayerRouting
from moesaic.core.view import View
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.model_info.model_spec import ModelSpec
from random_plans import RandomBrain
from real_runs import PROMPT, Loaded, Said, load, loaded, opened, running, say, settings, truth
from stock_text import greedy, prompt, stock_logits

FP32_TOLERANCE = 1e-4
EVERY_EXPERT = ("mixtral-every-expert", "qwen3-moe-every-expert")


class Noting(RandomBrain):
    """Keeps the routings it was given."""

    def __init__(self, spec: ModelSpec, slots: int, seed: int) -> None:
        super().__init__(spec, slots, seed)
        self.routings: list[LayerRouting] = []

    def decide(self, routing: LayerRouting, view: View) -> LayerPlan:
        self.routings.append(routing)
        return super().decide(routing, view)


@contextmanager
def mixed(
    model: Loaded, sequences: int = 1, seed: int = 0
) -> Iterator[tuple[Runner, list[LayerRouting]]]:
    """A machine whose random brain uses both devices and the link, and that brain's routings."""
    slots = model.slots(0.3)
    brain = Noting(model.spec, slots, seed)
    with running(model, slots=slots, sequences=sequences, brain=brain) as runner:
        yield runner, brain.routings


def assert_same(got: Said, wanted: Said) -> None:
    assert (got.logits - wanted.logits).abs().max() < FP32_TOLERANCE
    assert got.text == wanted.text


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_a_prompt_of_one_token(name: str) -> None:
    wanted = Said(*greedy(stock.saved(name).model, [7], steps=8))
    with mixed(loaded(name)) as (runner, _):
        assert_same(say(runner, [7], steps=8), wanted)


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_sequences_of_different_lengths_in_one_batch(name: str) -> None:
    """Prefilled together, decoded together; one joins late, one leaves, its place is used again."""
    texts = [prompt(n, seed=n) for n in (1, 17, 9, 5)]
    rows: list[list[torch.Tensor]] = [[] for _ in texts]
    where = {0: 2, 1: 0, 2: 1, 3: 2}  # text -> slot of the KV cache: 3 comes when 0 has left

    def step(runner: Runner, *texts_and_tokens: tuple[int, list[int]]) -> None:
        inputs = [Piece(where[text], tokens) for text, tokens in texts_and_tokens]
        for (text, tokens), row in zip(
            texts_and_tokens, runner.step(ForwardPass(inputs)), strict=True
        ):
            rows[text].append(row)
            fed[text] += tokens

    fed: list[list[int]] = [[] for _ in texts]
    with mixed(loaded(name), sequences=3) as (runner, _):
        step(runner, (0, texts[0]), (1, texts[1]))
        step(runner, (1, [3]), (2, texts[2]), (0, [4]))
        step(runner, (0, [5]), (1, [6]), (2, [8]))
        runner.free_slot(where[0])
        step(runner, (3, texts[3]), (2, [9, 10]), (1, [11]))
        step(runner, (2, [12]), (3, [13]))
    for tokens, got in zip(fed, rows, strict=True):
        theirs, _ = stock_logits(stock.saved(name).model, tokens)
        assert (theirs[-1] - got[-1]).abs().max() < FP32_TOLERANCE
    theirs, _ = stock_logits(stock.saved(name).model, texts[1] + [3, 6, 11])
    wanted = theirs[len(texts[1]) - 1 :]
    assert (wanted - torch.stack(rows[1])).abs().max() < FP32_TOLERANCE


@pytest.mark.parametrize("name", EVERY_EXPERT)
def test_every_token_wants_every_expert(name: str) -> None:
    with mixed(loaded(name)) as (runner, _):
        assert_same(say(runner), truth(name))


FEW_SLOTS = [("gpu-only", "lru", "impact"), ("best-split", "mrs", "none")]


@pytest.mark.parametrize(("name", "names"), in_turns(EVERY_EXPERT, FEW_SLOTS))
def test_every_token_wants_every_expert_and_few_have_a_slot(
    name: str, names: tuple[str, str, str]
) -> None:
    model = loaded(name)
    with running(model, settings(*names), model.slots(0.25)) as runner:
        assert_same(say(runner), truth(name))


@pytest.mark.parametrize("name", stock.FAMILIES)
def test_an_expert_that_gets_no_token_is_never_computed(name: str) -> None:
    """Experts without tokens become NaN and are moved, and the logits do not change."""
    wanted = Said(*greedy(stock.saved(name).model, [7, 8], steps=3))
    model = load(name)
    with mixed(model) as (runner, routings):
        assert_same(say(runner, [7, 8], steps=3), wanted)
    asked = {ExpertId(at.layer, int(expert)) for at in routings for expert in at.experts.ravel()}
    layers, experts = model.spec.num_moe_layers, model.spec.num_experts
    every = {ExpertId(layer, e) for layer in range(layers) for e in range(experts)}
    assert every - asked, "every expert was used"
    for layer, expert in every - asked:
        model.store.block(layer, expert).view(torch.float32).fill_(torch.nan)
    for seed in range(3):
        with mixed(model, seed=seed) as (runner, _):
            assert_same(say(runner, [7, 8], steps=3), wanted)


ROUTERS = ("mlp.gate.weight", "e_score_correction_bias", "router.weight", "router.bias")


def with_tied_gates(name: str) -> Any:
    """A stock model in whose layers half of the experts score the same, to the bit: their gate
    rows are zero, and their correction biases, where there are any, equal."""
    model = stock.make(name)
    tied = 0
    with torch.no_grad():
        for key, tensor in (*model.named_parameters(), *model.named_buffers()):
            if key.endswith(ROUTERS):
                tensor[::2] = 0.0
                tied += 1
    assert tied >= model.config.num_hidden_layers - 1, "the gates are elsewhere"
    return model


def is_tied_where_it_is_cut(routing: LayerRouting) -> bool:
    """The last expert that was chosen scores no better than the first that was not."""
    k = routing.experts.shape[1]
    return bool((routing.scores[:, k - 1] == routing.scores[:, k]).any())


@pytest.mark.parametrize("name", [*stock.FAMILIES, "glm-4.5-grouped"])
def test_tied_scores_lose_no_expert_and_compute_none_twice(name: str, tmp_path: Path) -> None:
    """The stock model breaks ties as its `topk` does, and so do we."""
    model = with_tied_gates(name)
    wanted = Said(*greedy(model, PROMPT))
    mine = opened(stock.save(model, tmp_path))
    with mixed(mine) as (runner, routings):
        assert_same(say(runner), wanted)
    assert any(is_tied_where_it_is_cut(routing) for routing in routings)
    for names in (("gpu-only", "lru", "next-layer"), ("best-split", "two-speed", "impact")):
        with running(mine, settings(*names), mine.slots(0.25)) as runner:
            assert_same(say(runner), wanted)
