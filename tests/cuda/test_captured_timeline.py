"""Do captured steps on a real GPU leave a timeline that accounts for their time, and say the same
with one as without? Needs a GPU."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from executors import captured_of
from graph_models import shrunk
from random_experts import filled_store

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.report import AWAIT_PLAN, ENGINE, Span, StepReport, Timeline, covered_ns
from moesaic.engine.assemble import on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.policies.policy_set import PolicySet

SYSTEMS = [
    ("best-split", "two-speed", "impact"),
    ("gpu-only", "lru", "none"),
    ("static-experts", "pinned", "none"),
]


def runner_of(name: str, names: tuple[str, str, str], timeline: Timeline) -> Runner:
    torch.manual_seed(0)
    architecture = shrunk(name)
    settings = EngineSettings(
        policies=PolicySet.of(schedule=names[0], cache=names[1], prefetch=names[2]),
        accelerator="cuda", max_step_tokens=160, max_sequences=4, threads=4,
    )  # fmt: skip
    decoder = synthetic_decoder(architecture, "bf16", "reference")
    capacity = Capacity(slots=20, sequences=4, length=300)
    return on_store(decoder, filled_store(architecture, "bf16"), settings, capacity, None, timeline)


def conversation(runner: Runner) -> tuple[list[StepReport], torch.Tensor]:
    """A prompt, tokens of one sequence, tokens of two."""
    rows, reports = [], []
    steps = [[Piece(0, list(range(3, 133)))], [Piece(1, [5, 6, 7])]]
    steps += [[Piece(0, [17 * number])] for number in range(6)]
    steps += [[Piece(slot, [40 + number]) for slot in (0, 1)] for number in range(3)]
    for step in steps:
        rows.append(runner.step(ForwardPass(step)))
        assert runner.report is not None
        reports.append(runner.report)
    return reports, torch.cat(rows)


def of_step(spans: list[Span], report: StepReport) -> list[Span]:
    return [s for s in spans if s.start_ns < report.end_ns and s.end_ns > report.start_ns]


def assert_in_order(spans: list[Span]) -> None:
    for lane in (GPU, CPU, PCIE, ENGINE):
        mine = sorted(span[2:4] for span in spans if span.lane == lane)
        assert all(start < end for start, end in mine)
        assert all(one[1] <= other[0] for one, other in pairwise(mine)), lane


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v2-lite", "deepseek-v3"])
@pytest.mark.parametrize("names", SYSTEMS, ids="+".join)
def test_the_timeline_accounts_for_every_captured_step(
    name: str, names: tuple[str, str, str]
) -> None:
    timeline = Timeline(engine=True)
    runner = runner_of(name, names, timeline)
    machine = runner.machine
    captured = captured_of(runner)
    reports, _ = conversation(runner)
    assert machine.last is captured, "the last step was a captured one"
    layers = machine.store.layers
    first = 2 if name.startswith("deepseek") else 0  # prompts of latent attention are not captured
    assert_in_order([s for s in timeline.spans if s.end_ns > reports[first].start_ns])
    for report in reports[first:]:
        spans = of_step(timeline.spans, report)
        on_gpu = [s for s in spans if s.lane == GPU]
        assert {s.layer for s in on_gpu if s.kind == AWAIT_PLAN} == set(range(layers))
        experts = [s for s in spans if s.kind == "expert"]
        for layer, told in enumerate(report.layers):
            assert sum(len(s.computed) for s in experts if s.layer == layer) == told.active
        shown = (s for s in spans if s.lane in (GPU, ENGINE))
        known = covered_ns(shown, report.start_ns, report.end_ns)
        assert known == pytest.approx(report.latency_ns, rel=0.05)
        for s in on_gpu:
            assert report.start_ns <= s.start_ns
            assert s.end_ns <= report.end_ns
    assert captured._spans.uncertainty_ns < 50_000
    runner.close()


def test_a_timeline_changes_no_result() -> None:
    """The same system and plans, since nothing is decided by time: the same bits."""
    names = ("static-experts", "pinned", "none")
    logits = []
    for enabled in (False, True):
        runner = runner_of("qwen3-30b-a3b", names, Timeline(enabled=enabled, engine=True))
        logits.append(conversation(runner)[1])
        runner.close()
    assert torch.equal(*logits)
