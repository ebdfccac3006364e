"""Do passes of gates as captured steps say and decide what the same machine does layer by layer?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from executors import captured_of, layers_of
from gated_passes import passes
from graph_models import shrunk
from random_experts import filled_store
from test_conducted_gates import Again
from test_graph_decoding import CAPACITY, agreement, check_slots

from conducted_run import assert_decided_again
from moesaic.core.routing import LayerRouting, cut
from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.runner import Runner
from moesaic.machines.captured import graph_steps
from moesaic.machines.captured.conductor import Conductor
from moesaic.machines.real.forward_pass import Replay
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.compose import Composition
from moesaic.policies.fallback_prefetch import FallbackPrefetch
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape

GATES = ("little:k=1", "big-little:k=2", "self-speculative:draft=2,k=2")
SYSTEMS = [
    ("best-split", "two-speed", "impact"),
    ("hybrid", "mrs", "next-layer"),
    ("gpu-only", "lru", "none"),
    ("static-experts", "pinned", "none"),
]


def runner_of(name: str, dtype: str, names: tuple[str, str, str], gate: str) -> Runner:
    torch.manual_seed(0)
    architecture = shrunk(name)
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2], gate=gate)
    settings = EngineSettings(
        policies=policies, accelerator="cuda", max_step_tokens=64, max_sequences=4, threads=4
    )
    decoder = synthetic_decoder(architecture, "bf16", "reference")
    return on_store(decoder, filled_store(architecture, dtype), settings, CAPACITY)


def spoken(runner: Runner, captured: bool) -> torch.Tensor:
    """Logits of all passes."""
    rows, graphs = [], captured_of(runner)
    if not captured:
        runner.machine.use_only_layerwise("it is compared")
    for logits in passes(runner):
        rows.append(logits)
        if captured:
            assert graphs.has_slots, "a pass of a gate was not captured"
    check_slots(runner)
    runner.close()
    return torch.cat(rows).double()


def compare(name: str, dtype: str, names: tuple[str, str, str], gate: str) -> None:
    got = spoken(runner_of(name, dtype, names, gate), captured=True)
    want = spoken(runner_of(name, dtype, names, gate), captured=False)
    assert agreement(got, want) > 0.85
    assert (got.argmax(1) == want.argmax(1)).double().mean() > 0.85


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    "name", ["olmoe-1b-7b", "qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3"]
)
def test_every_gate_says_what_it_says_layer_by_layer(name: str, gate: str) -> None:
    """Weights of few experts as they are and normalised over them, with and without groups."""
    compare(name, "bf16", ("hybrid", "mrs", "impact"), gate)


@pytest.mark.parametrize("gate", GATES[1:])
@pytest.mark.parametrize("dtype", ["bf16", "int4"])
@pytest.mark.parametrize("names", SYSTEMS)
def test_every_system_and_precision_says_what_it_says_layer_by_layer(
    names: tuple[str, str, str], dtype: str, gate: str
) -> None:
    compare("qwen3-30b-a3b", dtype, names, gate)


class Routings:
    """Random ones, which are replayed; `seen`: what the brain was given of them."""

    def __init__(self, shape: Shape) -> None:
        self._shape, self._rng = shape, np.random.default_rng(4)
        self._last: list[LayerRouting] = []
        self.seen: list[LayerRouting] = []

    def __call__(self, tokens: int) -> Replay:
        self._last = [self._layer(layer, tokens) for layer in range(self._shape.layers)]
        return self._last.__getitem__

    def _layer(self, layer: int, tokens: int) -> LayerRouting:
        logits = self._rng.normal(size=(tokens, self._shape.experts))
        ranked = np.argsort(-logits, axis=1, kind="stable").astype(np.int64)
        scores = np.exp(np.take_along_axis(logits, ranked, axis=1)).astype(np.float32)
        scores /= scores.sum(axis=1, keepdims=True)
        chosen = slice(self._shape.top_k)
        experts, weights = ranked[:, chosen].copy(), scores[:, chosen].copy()
        return LayerRouting(layer, experts, weights, ranked, scores)

    def note(self, counts: np.ndarray | None, ranks: int, step: int) -> None:
        """The pass has ended."""
        for whole in self._last:
            each = whole if counts is None else cut(whole, counts)
            ranked, scores = each.ranked[:, :ranks].copy(), each.scores[:, :ranks].copy()
            self.seen.append(
                LayerRouting(
                    each.layer, each.experts, each.weights, ranked, scores, (), each.counts, step
                )
            )


@pytest.mark.parametrize("gate", GATES[1:])
@pytest.mark.parametrize("names", SYSTEMS)
def test_every_plan_is_made_again_in_python(
    names: tuple[str, str, str], gate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[tuple[list[int], list[int]]] = []
    begin = FallbackPrefetch.begin

    def noted(self: FallbackPrefetch, rows: Sequence[int], ages: Sequence[int]) -> None:
        begun.append((list(rows), list(ages)))
        begin(self, rows, ages)

    with monkeypatch.context() as patched:
        patched.setattr(graph_steps, "Conductor", partial(Conductor, records=True))
        patched.setattr(FallbackPrefetch, "begin", noted)
        runner = runner_of("qwen3-30b-a3b", "bf16", names, gate)
        spec, machine = runner.decoder.architecture.spec, runner.machine
        shape = Shape(spec.num_moe_layers, spec.num_experts, spec.top_k)
        routings, graphs = Routings(shape), captured_of(runner)
        for _ in passes(runner, routings):
            assert graphs.has_slots, "a pass of a gate was not captured"
            routings.note(runner._counts, layers_of(runner).packed.ranks, machine._passes)
    look_ahead_to = graphs._steps.look_ahead_to
    decisions = [each._asdict() for each in graphs._steps._conductor.decisions]
    accuracy, belief, made = runner.prefetch_accuracy, runner.brain.belief, runner.gate
    runner.close()
    policies = PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2], gate=gate)
    policies = policies.given_slots(CAPACITY.slots)
    again = Again(Composition(policies, shape, CAPACITY.slots).brain(belief), made, begun)
    assert_decided_again(
        again, routings.seen, decisions, shape, CAPACITY.slots,  # type: ignore[arg-type]
        look_ahead_to=look_ahead_to,
    )  # fmt: skip
    assert again.fallback.accuracy == accuracy
    assert accuracy is not None
