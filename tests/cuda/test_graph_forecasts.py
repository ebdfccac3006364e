"""Do captured steps forecast later layers as the same machine does layer by layer? Needs a GPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from executors import captured_of, layers_of
from graph_models import FAMILIES, shrunk
from test_graph_decoding import agreement, conversation, runner_of

from moesaic.core.layer_plan import LayerPlan
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.configs.architecture import Architecture
from network_changes import with_router

SYSTEM = ("hybrid", "mrs", "impact")
Said = list[tuple[torch.Tensor, torch.Tensor]]  # experts and scores, of every layer of every step


def decoded(runner: Runner) -> torch.Tensor:
    rows = [runner.step(ForwardPass([Piece(i, [5 + i, 6, 7, 8 * i + 1]) for i in range(3)]))]
    for number in range(6):
        rows.append(runner.step(ForwardPass([Piece(i, [17 * number + i]) for i in range(3)])))
        rows.append(runner.step(ForwardPass([Piece(1, [40 + number])])))
    return torch.cat(rows)


def captured_forecasts(runner: Runner) -> tuple[Said, torch.Tensor]:
    """What stood in the mailbox after every step."""
    said: Said = []
    graphs = captured_of(runner)
    collect = graphs.collect

    def collected() -> torch.Tensor:
        assert graphs._begun is not None
        tokens = graphs._begun.step.tokens
        output = collect()
        box = graphs._steps._mailbox
        for layer in range(box.shape.layers - 1):
            depth = min(box.shape.forecasts, box.shape.layers - 1 - layer)
            parts = (box[f"forecast_{part}"][layer, :depth, :tokens] for part in ("ids", "scores"))
            ids, scores = (part.clone() for part in parts)
            said.append((ids, scores))
        return output

    graphs.collect = collected  # type: ignore[method-assign]
    logits = decoded(runner)
    in_time, late = graphs._steps._conductor.forecast_counts
    assert in_time > 0, (in_time, late)  # how many are depends on the machine's speed
    runner.close()
    return said, logits


def driven_forecasts(runner: Runner) -> tuple[Said, torch.Tensor]:
    """The same by the machine that is driven from Python, whether its brain asks or not."""
    said: Said = []
    runner.machine.use_only_layerwise("it is compared")
    machine = layers_of(runner)
    start, top_k = machine.start, runner.decoder.architecture.spec.top_k

    def started(plan: LayerPlan) -> None:
        start(plan)
        if machine.can_forecast:
            found = machine.forecasts(runner.brain.forecasts_used)
            ranked = np.stack([each.ranked[:, :top_k] for each in found])
            scores = np.stack([each.scores[:, :top_k] for each in found])
            said.append((torch.from_numpy(ranked), torch.from_numpy(scores)))

    machine.start = started  # type: ignore[method-assign]
    logits = decoded(runner)
    runner.close()
    return said, logits


SEVERAL = [name for name in FAMILIES if shrunk(name).spec.num_moe_layers > 1]


@pytest.mark.parametrize("name", SEVERAL)
def test_every_family_is_forecast_as_layer_by_layer(name: str) -> None:
    compare(name)


def test_routers_with_groups_are_forecast_as_layer_by_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def grouped(name: str) -> Architecture:
        whole = shrunk(name)
        return with_router(whole, groups=4, top_groups=2)

    monkeypatch.setattr("test_graph_decoding.shrunk", grouped)
    compare("deepseek-v2")


def compare(name: str) -> None:
    got, first = captured_forecasts(runner_of(name, "bf16", SYSTEM))
    want, second = driven_forecasts(runner_of(name, "bf16", SYSTEM))
    assert agreement(first.double(), second.double()) > 0.85
    assert 0 < len(got) <= len(want)
    want = want[-len(got) :]  # prompts with latent attention are not captured
    same, named, apart = 0, 0, []
    for (ids, scores), (other_ids, other_scores) in zip(got, want, strict=True):
        assert ids.shape == other_ids.shape
        assert int(ids.min()) >= 0
        for mine, others in zip(ids.flatten(0, 1), other_ids.flatten(0, 1), strict=True):
            assert len(set(mine.tolist())) == len(mine)
            same += len(set(mine.tolist()) & set(others.tolist()))
            named += len(mine)
        apart.append(float((scores - other_scores).abs().max()))
    # A near tie, of two experts or in an earlier layer, is decided by rounding.
    assert same / named > 0.9
    assert float(np.median(apart)) < 0.02


@pytest.mark.parametrize(
    "names",
    [
        ("best-split", "two-speed", "impact"),
        ("best-split", "lru", "next-layer"),
        ("gpu-only", "lru", "none"),
        ("static-experts", "pinned", "none"),
    ],
)
def test_steps_with_and_without_gates_say_the_same(names: tuple[str, str, str]) -> None:
    """Where nothing is looked ahead for, no gates are there; elsewhere they change no result."""
    told, untold = (runner_of("qwen3-30b-a3b", "bf16", names) for _ in range(2))
    graphs, without = captured_of(told), captured_of(untold)
    assert graphs is not None
    assert without is not None
    assert (graphs._gates is not None) == (names[2] != "none")
    without._gates = None
    got, want = conversation(told), conversation(untold)
    assert agreement(got, want) > 0.85
