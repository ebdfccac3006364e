"""Does an engine tell what it did: which expert ran where, by which plan, and with whose blocks?"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from moesaic import AsyncLLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.report import LayerReport, StepReport
from moesaic.engine.insight.capture_order import CaptureOrder
from moesaic.engine.insight.facts import Insight, LayerFacts
from moesaic.engine.insight.layer_facts import layer_facts
from moesaic.engine.insight.step_log import NotedStep
from moesaic.policies.belief import Belief
from moesaic.workloads.format import MAGIC
from moesaic.workloads.reader import TraceReader

QUESTION = "Ann has 5 pens and buys 7 more. How many has she?"
LONG = SamplingParams(max_tokens=48, temperature=0.0, ignore_eos=True)
SOON_S = 120
ACCELERATED: dict[str, Any] = {"accelerator": "emulated", "cache_ratio": 0.25}


def engine(**options: Any) -> AsyncLLM:
    return AsyncLLM(**{"threads": 1, "accelerator": "none", "max_sequences": 4, **options})


async def noted(llm: AsyncLLM, ready: Any = lambda insight: insight.step is not None) -> Insight:
    """An insight of a step, while answers are written."""
    async with asyncio.timeout(SOON_S):
        while not ready(found := await llm.insight()):
            await asyncio.sleep(0.01)
        return found


async def while_answering(llm: AsyncLLM, ready: Any) -> Insight:
    async def answer() -> None:
        while True:
            await llm.generate(QUESTION, LONG, client="a client")

    answering = asyncio.create_task(answer())
    try:
        return await noted(llm, ready)
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)


def decoded(insight: Insight) -> bool:
    """A decode step, and enough of them before."""
    enough = insight.hits is not None and insight.hits.window_steps > 8
    return enough and insight.step is not None and insight.step.kind == "decode"


def check_layer(layer: LayerFacts, top_k: int) -> None:
    assert layer.active == len(layer.experts) == top_k
    assert sum(each.tokens for each in layer.experts) == top_k
    assert layer.measured_ns > 0
    assert layer.believed_ns is not None
    assert layer.believed_ns > 0


@pytest.mark.parametrize("kernel", ["auto", "reference"])
def test_without_an_accelerator_everything_runs_on_the_cpu(kernel: str) -> None:
    async def run() -> None:
        async with engine(kernel=kernel) as llm:
            found = await while_answering(llm, decoded)
        about, step = found.engine, found.step
        assert (about.accelerator, about.slots, about.lanes) == (None, 0, ["cpu"])
        assert step is not None
        assert len(step.layers) == about.layers
        for layer in step.layers:
            check_layer(layer, about.top_k)
            assert {(each.ran, each.gpu_ns) for each in layer.experts} == {("cpu", None)}
        assert found.resident == [[]] * about.layers
        assert found.hits is not None
        assert found.hits.actual is None
        assert 0 < found.hits.lru <= found.hits.belady < 1
        assert found.stats.lanes.gpu_s is None
        assert 0 < found.stats.lanes.cpu_s <= found.stats.step_s

    asyncio.run(run())


def test_with_an_accelerator_facts_are_those_of_the_plan() -> None:
    async def run() -> None:
        async with engine(**ACCELERATED) as llm:
            found = await while_answering(llm, decoded)
        about, step, lanes = found.engine, found.step, found.stats.lanes
        assert about.accelerator is not None
        assert about.accelerator[0] == "emulated"
        assert step is not None
        assert step.executor == "layerwise"
        for layer in step.layers:
            check_layer(layer, about.top_k)
            assert layer.lanes is not None
            assert layer.hits == sum(each.place == "accelerator" for each in layer.experts)
            moved = sum(each.ran == "link" for each in layer.experts)
            assert layer.bytes_moved == moved * about.expert_bytes
        assert sum(map(len, found.resident)) <= about.slots
        assert any(found.resident)
        assert found.hits is not None
        assert found.hits.actual is not None
        assert lanes.gpu_s is not None
        assert lanes.gpu_s > 0
        assert found.stats.expert_hits <= found.stats.wanted_experts

    asyncio.run(run())


def test_conversations_have_their_blocks() -> None:
    async def run() -> None:
        async with engine() as llm:
            found = await while_answering(llm, lambda each: each.step and each.conversations)
            running = [each for each in found.conversations if each.state == "running"]
            assert [each.client for each in running] == ["a client"]
            assert running[0].blocks >= 1
            await llm.generate(QUESTION, LONG)
            after = await llm.insight()
        assert {each.state for each in after.conversations} == {"kept"}
        blocks = sum(each.blocks for each in after.conversations)
        assert blocks == after.stats.blocks.kept == after.stats.blocks.used
        assert max(each.tokens for each in after.conversations) >= 48

    asyncio.run(run())


def test_nothing_is_noted_for_long_when_nothing_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with engine() as llm:
            monkeypatch.setattr("moesaic.engine.insight.step_log.WATCHED_S", 0.0)
            await llm.insight()
            log = llm.model.batcher.log
            assert log.on
            assert all(each.watch is log for each in llm.model.runner.machine.executors)
            await llm.generate(QUESTION, LONG)
            assert log.last is None
            assert all(each.watch is None for each in llm.model.runner.machine.executors)
            assert (await llm.insight()).step is None

    asyncio.run(run())


@pytest.mark.parametrize("options", [{}, ACCELERATED], ids=["cpu", "emulated"])
def test_captures_are_files_of_so_many_steps(options: dict[str, Any], tmp_path: Path) -> None:
    async def run() -> tuple[bytes, bytes, list[str | None]]:
        async with engine(**options) as llm:
            texts = []
            files = []
            for kind in ("perfetto", "routing"):
                captured = asyncio.create_task(llm.capture(CaptureOrder(kind, 6), SOON_S))
                await asyncio.sleep(0)
                answers = await llm.generate([QUESTION, "Ben has 3 red and 4 blue"], LONG)
                texts += [each.text for each in answers]
                files.append(await captured)
            texts += [each.text for each in await llm.generate([QUESTION], LONG)]
            assert llm.model.runner.machine.timeline.enabled is False
            assert llm.model.runner.machine.timeline.spans == []
            return files[0], files[1], texts

    spans, routing, texts = asyncio.run(run())
    assert texts[0] == texts[2] == texts[4], "captures change no text"
    events = json.loads(spans)["traceEvents"]
    assert sum(event.get("cat") == "step" for event in events) == 6
    assert {"dense", "expert"} <= {event.get("cat") for event in events}
    file = tmp_path / "routing.moet"
    file.write_bytes(routing)
    with TraceReader(file) as reader:
        blocks = list(reader)
        assert reader.header.source == "recorded while moesaic-20m was served"
    positions = [block.positions.tolist() for block in blocks]
    assert len({int(number) for block in blocks for number in block.documents}) == 2
    assert sum(map(len, positions)) >= 2 * 6 - 1


def test_a_capture_ends_with_the_steps_there_are() -> None:
    async def run() -> None:
        async with engine() as llm:
            captured = asyncio.create_task(llm.capture(CaptureOrder("perfetto", 1000), 0.5))
            await asyncio.sleep(0)
            with pytest.raises(ImpossibleSetting, match="a capture of 1000 steps is under way"):
                await llm.capture(CaptureOrder("routing", 1), 1)
            await llm.generate(QUESTION, SamplingParams(max_tokens=4, temperature=0.0))
            steps = [
                event
                for event in json.loads(await captured)["traceEvents"]
                if event.get("cat") == "step"
            ]
            assert 1 <= len(steps) <= 4
            with pytest.raises(ImpossibleSetting, match="no step ran while the capture waited"):
                await llm.capture(CaptureOrder("perfetto", 2), 0.01)

    asyncio.run(run())


def test_a_capture_whose_client_has_left_makes_room_for_the_next() -> None:
    async def run() -> None:
        async with engine() as llm:
            left = asyncio.create_task(llm.capture(CaptureOrder("routing", 10), SOON_S))
            await asyncio.sleep(0.05)
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)
            captured = asyncio.create_task(llm.capture(CaptureOrder("routing", 2), SOON_S))
            await asyncio.sleep(0)
            await llm.generate(QUESTION, LONG)
            assert (await captured).startswith(MAGIC)

    asyncio.run(run())


def test_a_capture_has_a_number_of_steps() -> None:
    with pytest.raises(ImpossibleSetting, match="steps is 0; a capture has between 1 and 1000"):
        CaptureOrder("perfetto", 0)


def test_an_engine_that_records_its_whole_run_captures_no_routing(tmp_path: Path) -> None:
    async def run() -> None:
        async with engine(record=tmp_path / "whole.moet") as llm:
            with pytest.raises(ImpossibleSetting, match="the whole run is recorded"):
                await llm.capture(CaptureOrder("routing", 1), 1)
            await llm.generate(QUESTION, SamplingParams(max_tokens=2))

    asyncio.run(run())
    assert (tmp_path / "whole.moet").exists()


def test_a_captured_step_tells_which_device_computed_what() -> None:
    """Graphs leave no plan; their trace has what the conductor gave to whom."""
    work = SimpleNamespace(
        gpu=[3, 5, 7], gpu_pairs=[2, 1, 1], in_place=[7], cpu=[1], cpu_pairs=[4], there=1
    )
    copy = SimpleNamespace(which=5, background=False)
    stamps = SimpleNamespace(layers=[SimpleNamespace(planned=500, summed=580)])
    trace = SimpleNamespace(work=[work], copies=[copy], stamps=stamps)
    report = StepReport(0, 100, 8, (LayerReport(0, 10, 10, 4, 1, 1000),))
    step = NotedStep(1, "decode", 8, 8, "captured", report, [], trace)
    belief = Belief(np.array([[0, 10, 11, 12, 13], [0, 40, 60, 80, 100]]), 5, 200)
    (layer,) = layer_facts(step, belief, experts=8)
    assert [(e.expert, e.tokens, e.ran, e.place) for e in layer.experts] == [
        (1, 4, "cpu", "unknown"),
        (3, 2, "gpu", "accelerator"),
        (5, 1, "link", "host"),
        (7, 1, "link", "host"),
    ]
    assert (layer.believed_ns, layer.measured_ns) == (None, 80)
    assert [each.cpu_ns for each in layer.experts] == [100, 60, 40, 40]
