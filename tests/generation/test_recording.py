"""Does a recording hold what the routers said, and can the simulator play it?"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_llms import MACHINES, TIGHT, greedy, llm, prompts

import stock
from moesaic import AsyncLLM
from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.workloads.block import DECODE, PREFILL, RoutingBlock
from moesaic.workloads.documents import documents
from moesaic.workloads.source import open_trace
from moesaic.workloads.writer import TraceWriter

TOKENS = 6
HALF = 1e-3  # what fp16 leaves of a number below 1


def read(path: Path) -> list[RoutingBlock]:
    return list(documents(open_trace(path)))


def stock_probabilities(model: Any, tokens: list[int]) -> torch.Tensor:
    """What the stock routers say of every expert: [tokens, layers, experts]."""
    with torch.inference_mode():
        out = model(torch.tensor([tokens]), output_router_logits=True)
    return torch.stack([logits.softmax(-1) for logits in out.router_logits], dim=1)


@pytest.mark.parametrize(("machine", "ranks"), [("cpu", 10), ("emulated", 10)])
def test_the_trace_is_what_the_stock_routers_say(tmp_path: Path, machine: str, ranks: int) -> None:
    saved, path = stock.saved("olmoe"), tmp_path / "trace.moet"
    with llm(saved.folder, machine, record=path) as model:
        said = model.generate(prompts(), greedy(TOKENS))
        assert not path.exists()
    header = open_trace(path).header
    assert (header.num_layers, header.num_experts, header.top_k) == (3, 12, 5)
    assert (header.ranks, header.has_weights, header.has_scores) == (ranks, True, ranks > 5)
    recorded = {len(document): document for document in read(path)}  # no two are as long
    assert len(recorded) == len(said)
    for one in said:
        tokens = [*one.prompt_tokens, *one.tokens[:-1]]  # the last one was never fed
        document, read_tokens = recorded[len(tokens)], len(one.prompt_tokens)
        assert document.positions.tolist() == list(range(len(tokens)))
        assert document.phases.tolist() == [PREFILL] * read_tokens + [DECODE] * (TOKENS - 1)
        best = stock_probabilities(saved.model, tokens).topk(ranks)
        assert np.array_equal(document.experts, best.indices)
        assert document.weights is not None
        assert document.weights == pytest.approx(best.values[..., :5].numpy(), abs=HALF)
        if document.scores is not None:
            assert document.scores == pytest.approx(best.values.numpy(), abs=HALF)


def test_the_simulator_plays_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.moet"
    with llm(stock.saved("olmoe").folder, "emulated", record=path) as model:
        model.generate(prompts(), greedy(12))
        spec = model.model.spec
    settings = Settings(
        spec,
        load_machine("a6000-xeon5220r"),
        tokens=8,
        batch=2,
        warmup=1,
        profile_tokens=0,
        checked=True,
    )
    result = simulate(settings, open_trace(path))
    assert result.tokens == 16
    assert 0 < result.hit_rate < 1


def test_an_interruption_between_steps_keeps_what_was_recorded(tmp_path: Path) -> None:
    path = tmp_path / "trace.moet"

    def interrupted() -> None:
        with llm(stock.saved("olmoe").folder, record=path) as model:
            model.generate([[1, 2]], greedy(3))
            for number, _ in enumerate(model.stream([3, 4, 5], greedy(50))):
                if number == 2:
                    raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert [len(document) for document in read(path)] == [2 + 2, 3 + 2]


def test_an_interrupted_step_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "trace.moet"
    with llm(stock.saved("olmoe").folder, "emulated", record=path) as model:
        stream = model.stream([1, 2, 3], greedy(50))
        next(stream)
        next(stream)
        layers: Any = model.model.runner.machine.layerwise
        wait, waits = layers.wait, iter(range(100))

        def interrupt() -> Any:
            if next(waits) == 1:
                raise KeyboardInterrupt
            return wait()

        layers.wait = interrupt
        with pytest.raises(KeyboardInterrupt):
            next(stream)
        model.generate([[7] * 9], greedy(2))
    assert [len(document) for document in read(path)] == [3 + 1, 9 + 1]


@pytest.mark.parametrize("where", ["in a step", "between steps"])
def test_an_error_leaves_no_file(tmp_path: Path, where: str) -> None:
    def failing() -> None:
        with llm(stock.saved("olmoe").folder, record=tmp_path / "trace.moet") as model:
            model.generate([[1, 2]], greedy(3))
            if where == "between steps":
                raise ValueError("of the caller")
            layers: Any = model.model.runner.machine.layerwise
            layers.wait = None
            with pytest.raises(TypeError):
                model.generate([[1, 2]], greedy(3))

    if where == "between steps":
        with pytest.raises(ValueError, match="of the caller"):
            failing()
    else:
        failing()
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(writer: TraceWriter, block: RoutingBlock) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(TraceWriter, "write", full)
    with llm(stock.saved("olmoe").folder, record=tmp_path / "trace.moet") as model:
        with pytest.raises(OSError, match="no space left"):
            model.generate([[1, 2]], greedy(3))
        assert list(tmp_path.iterdir()) == []
        assert len(model.generate([[1, 2]], greedy(3))[0].tokens) == 3  # unrecorded
    assert list(tmp_path.iterdir()) == []


def test_clients_record_too(tmp_path: Path) -> None:
    path = tmp_path / "trace.moet"

    async def serve() -> None:
        options = TIGHT | MACHINES["cpu"]
        async with AsyncLLM(stock.saved("olmoe").folder, record=path, **options) as model:
            calls = [model.generate([prompt], greedy(3)) for prompt in prompts()]
            await asyncio.gather(*calls)

    asyncio.run(serve())
    lengths = sorted(len(document) for document in read(path))
    assert lengths == sorted(len(prompt) + 2 for prompt in prompts())


def test_a_file_that_cannot_be_written_is_refused_at_once(tmp_path: Path) -> None:
    folder = stock.saved("olmoe").folder
    with pytest.raises(ImpossibleSetting, match="is a directory"):
        llm(folder, record=tmp_path)
    with pytest.raises(ImpossibleSetting, match=r"cannot be written \(No such file"):
        llm(folder, record=tmp_path / "nowhere" / "trace.moet")
