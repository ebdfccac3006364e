"""Do captured steps say the same when they are submitted and collected later? Needs a GPU."""

from __future__ import annotations

from pathlib import Path
from time import sleep
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from test_captured_timeline import runner_of

import stock
from moesaic import LLM, SamplingParams
from moesaic.core.report import Timeline
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece

STATIC = ("static-experts", "pinned", "none")
LONGER_S = 0.1  # than a launch waits for its step
WIDE = {
    "hidden_size": 256, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "moe_intermediate_size": 128, "num_hidden_layers": 4, "num_experts": 16,
    "num_experts_per_tok": 4,
}  # fmt: skip


def conversation(runner: Runner, submits: bool) -> list[torch.Tensor]:
    """Prompts, then decoded tokens of one sequence or two; the caller is slow, waits for the whole
    GPU, gives a step up or reads a prompt between."""
    found = [runner.step(ForwardPass([Piece(slot, [3 + slot, 4, 5, 6])])) for slot in range(2)]
    for number in range(24):
        both = 8 <= number < 14
        inputs = [
            Piece(slot, [7 * number + slot], sampling=GREEDY if number % 5 < 4 else None)
            for slot in range(1 + both)
        ]
        found.append(
            collected(runner, inputs, number) if submits else runner.step(ForwardPass(inputs))
        )
        if number == 17:
            found.append(runner.step(ForwardPass([Piece(1, [8, 9, 10])])))
    return found


def collected(runner: Runner, inputs: list[Piece], number: int) -> torch.Tensor:
    ahead = ForwardPass(inputs, ahead=True)
    if runner.refuses(ahead) is not None:
        return runner.step(ForwardPass(inputs))
    runner.submit(ahead)
    if number in (4, 12):
        sleep(LONGER_S)
    if number in (6, 11):
        torch.cuda.synchronize()
    if number == 16:  # the caller was interrupted, and that step is forgotten
        runner.submit(ahead)
    if number == 20:
        return runner.step(ForwardPass(inputs))
    return runner.collect()


def submit(runner: Runner, piece: Piece) -> None:
    work = ForwardPass([piece], ahead=True)
    assert runner.refuses(work) is None
    runner.submit(work)


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v2-lite"])
def test_submitted_steps_change_no_result(name: str) -> None:
    said = []
    for submits in (False, True):
        runner = runner_of(name, STATIC, Timeline(enabled=False))
        said.append(conversation(runner, submits))
        runner.close()
    assert len(said[0]) == 2 + 24 + 1
    assert all(torch.equal(one, other) for one, other in zip(*said, strict=True))


def test_reports_are_of_the_collected_step() -> None:
    runner = runner_of("qwen3-30b-a3b", STATIC, Timeline(enabled=False))
    runner.step(ForwardPass([Piece(0, [1, 2, 3])]))
    runner.step(ForwardPass([Piece(0, [4], sampling=GREEDY)]))
    starts = []
    for number in range(6):
        submit(runner, Piece(0, [5 + number], sampling=GREEDY))
        assert runner.report is not None
        starts.append(runner.report.start_ns)
        sleep(LONGER_S)  # which is not the machine's time
        runner.collect()
        assert runner.report.latency_ns < 5e8 * LONGER_S
    assert len(set(starts)) == 6
    assert starts == sorted(starts)
    assert runner.cache.length(0) == 3 + 1 + 6
    runner.close()


def test_what_was_not_captured_is_not_submitted() -> None:
    """Capturing a graph takes long, and the last step's token would be returned after it."""
    runner = runner_of("qwen3-30b-a3b", STATIC, Timeline(enabled=False))
    runner.step(ForwardPass([Piece(0, [1, 2, 3])]))
    for how in (GREEDY, None):
        assert runner.refuses(ForwardPass([Piece(0, [4], sampling=how)], ahead=True))
        runner.step(ForwardPass([Piece(0, [4], sampling=how)]))
        submit(runner, Piece(0, [5], sampling=how))
        runner.collect()
    assert runner.refuses(ForwardPass([Piece(0, [4]), Piece(1, [4])], ahead=True))
    runner.close()


def test_copies_go_on_beside_a_caller_that_waits_for_the_gpu() -> None:
    runner = runner_of(
        "qwen3-30b-a3b", ("best-split", "two-speed", "impact"), Timeline(enabled=False)
    )
    runner.step(ForwardPass([Piece(0, [1, 2, 3])]))
    runner.step(ForwardPass([Piece(0, [4], sampling=GREEDY)]))
    for number in range(30):
        submit(runner, Piece(0, [5 + 3 * number], sampling=GREEDY))
        torch.cuda.synchronize()
        runner.collect()
    runner.close()


def test_closing_waits_for_a_submitted_step() -> None:
    runner = runner_of("qwen3-30b-a3b", STATIC, Timeline(enabled=False))
    runner.step(ForwardPass([Piece(0, [1, 2, 3])]))
    runner.step(ForwardPass([Piece(0, [4])]))
    submit(runner, Piece(0, [5]))
    runner.close()
    torch.cuda.synchronize()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stock.save(stock.make("qwen3-moe", **WIDE), tmp_path_factory.mktemp("wide"))


def generated(model: Path, **params: Any) -> list[tuple[int, ...]]:
    prompts = [[3, 4, 5, 6, 7], [8, 9], [10] * 12, [11, 12, 13]]
    asked = [
        SamplingParams(max_tokens=20 + 7 * i, ignore_eos=True, seed=i, **params)
        for i in range(len(prompts))
    ]
    with LLM(
        model, accelerator="cuda", dtype="bf16", cache_ratio=0.5, max_sequences=3,
        schedule="static-experts", cache="pinned", prefetch="none",
    ) as llm:  # fmt: skip
        batcher = llm.model.batcher
        given_up = llm.model.input_processor.request(prompts[0], asked[0])
        batcher.submit(given_up)
        for _ in range(4):
            batcher.step()
        batcher.cancel(given_up)  # while its next step is under way
        return [tuple(one.tokens) for one in llm.generate(prompts, asked)]


@pytest.mark.parametrize("params", [{"temperature": 0.0}, {"temperature": 0.8, "top_k": 20}])
def test_text_is_the_same(
    model: Path, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    submitted: list[ForwardPass] = []
    submit = Runner.submit

    def noted(self: Runner, work: ForwardPass) -> None:
        submitted.append(work)
        submit(self, work)

    monkeypatch.setattr(Runner, "submit", noted)
    got = generated(model, **params)
    assert len(submitted) >= 20
    monkeypatch.setattr(Runner, "refuses", lambda *given: "it is compared")
    assert generated(model, **params) == got
