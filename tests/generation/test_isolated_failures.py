"""A request that fails, wherever: does it end alone, and do the others go on as without it?"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_llms import MACHINES, TIGHT, greedy, llm, prompts, stock_greedy
from test_recording import read

import stock
from chat_models import talking
from moesaic import LLM, AsyncLLM, SamplingParams
from moesaic.core.errors import FailedRows, ImpossibleSetting
from moesaic.engine.isolation import run_isolated
from moesaic.machines.real.forward_pass import ForwardPass

POISON = 96
BAD = [5, POISON, 7]
FINE = [prompt for prompt in prompts() if POISON not in prompt and len(prompt) > 1]
TOKENS = 5


class Poisoned(RuntimeError):
    pass


def fail_where(
    model: LLM | AsyncLLM, method: str, condition: Callable[[ForwardPass], bool]
) -> None:
    """Steps of such passes fail in this method of the machine, when it has done its work:
    the KV cache is written to, experts have moved."""
    runner = model.model.runner
    machine: Any = runner.machine
    owner = machine if hasattr(type(machine), method) else machine.layerwise
    step, whole = runner.step, getattr(owner, method)
    fails = False

    def noticed(work: ForwardPass) -> Any:
        nonlocal fails
        fails = condition(work)
        return step(work)

    def failing(*given: Any) -> Any:
        found = whole(*given)
        if fails:
            raise Poisoned(method)
        return found

    runner.step = noticed  # type: ignore[method-assign]
    setattr(owner, method, failing)


def poison(model: LLM | AsyncLLM, method: str = "wait") -> None:
    fail_where(model, method, lambda work: POISON in work.numbers)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("family", ["mixtral", "gpt-oss", "qwen3-next"])
def test_the_others_complete_and_then_it_is_raised(family: str, machine: str) -> None:
    """With whole attention, with windows, and with states that a failed step must not have
    changed."""
    saved = stock.saved(family)
    with llm(saved.folder, machine, dtype="fp32") as model:
        poison(model)
        processor, batcher = model.model.input_processor, model.model.batcher
        asked = [*FINE[:2], BAD, *FINE[2:]]
        requests = [processor.request(prompt, greedy(TOKENS)) for prompt in asked]
        for request in requests:
            batcher.submit(request)
        while not batcher.idle:
            batcher.step()
        assert model.stats().failed_steps >= 2
        with pytest.raises(Poisoned):
            model.generate([FINE[0], BAD], greedy(TOKENS))
        (after,) = model.generate(FINE[0], greedy(TOKENS))
    ended = requests.pop(2)
    assert isinstance(ended.failure, Poisoned)
    assert ended.finish_reason == "cancelled"
    said = [*(request.completion() for request in requests), after]
    want = [stock_greedy(saved.model, prompt, TOKENS) for prompt in [*FINE, FINE[0]]]
    assert [list(one.tokens) for one in said] == want


def test_each_client_gets_its_own_answer_or_error() -> None:
    async def serve() -> list[Any]:
        async with AsyncLLM(stock.saved("olmoe").folder, **TIGHT) as model:
            poison(model)
            calls = [model.generate(prompt, greedy(TOKENS)) for prompt in [*FINE, BAD, *FINE]]
            return await asyncio.gather(*calls, return_exceptions=True)

    said = asyncio.run(asyncio.wait_for(serve(), 30))
    assert isinstance(said.pop(len(FINE)), Poisoned)
    want = [stock_greedy(stock.saved("olmoe").model, prompt, TOKENS) for prompt in FINE]
    assert [list(one.tokens) for (one,) in said] == want * 2


def test_a_stream_that_fails_leaves_the_other_streams() -> None:
    with llm(stock.saved("mixtral").folder) as model:
        poison(model)
        stream = model.stream(FINE[0], greedy(TOKENS))
        first = next(stream)
        with pytest.raises(Poisoned):
            list(model.stream(BAD, greedy(TOKENS)))
        tokens = [first.token, *(chunk.token for chunk in stream)]
    assert tokens == stock_greedy(stock.saved("mixtral").model, FINE[0], TOKENS)


def test_a_text_whose_tokens_the_model_does_not_know(tmp_path: Path) -> None:
    """The file's post-processor puts a token around texts that no vocabulary has: refused before
    the request joins the others."""
    folder = shutil.copytree(talking().folder, tmp_path / "model")
    file = folder / "tokenizer.json"
    fields = json.loads(file.read_text())
    fields["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [
            {"SpecialToken": {"id": "<s>", "type_id": 0}},
            {"Sequence": {"id": "A", "type_id": 0}},
        ],
        "pair": [],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [512], "tokens": ["<s>"]}},
    }
    file.write_text(json.dumps(fields))

    async def serve() -> list[Any]:
        async with AsyncLLM(folder, **TIGHT) as model:
            calls = [model.generate(prompt, greedy(TOKENS)) for prompt in ([1, 2], "text", [3])]
            return await asyncio.gather(*calls, return_exceptions=True)

    first, refused, last = asyncio.run(asyncio.wait_for(serve(), 30))
    assert isinstance(refused, ImpossibleSetting)
    assert "makes token id 512 of this text" in str(refused)
    assert [len(one[0].tokens) for one in (first, last)] == [TOKENS] * 2


DRAWN = [SamplingParams(max_tokens=TOKENS, seed=seed, top_k=30) for seed in range(len(FINE))]


@pytest.mark.parametrize("gate", ["full", "big-little:k=1,gamma=0.5", "self-speculative:k=1"])
@pytest.mark.parametrize(("machine", "method"), [("cpu", "run"), ("emulated", "wait")])
def test_a_failure_that_is_due_to_no_request_changes_no_text(
    gate: str, machine: str, method: str
) -> None:
    """Every step of several sequences fails: each of them runs alone, from where it was before,
    with the generators and drafts it had."""
    options: dict[str, Any] = {"gate": gate, "dtype": "fp32", "max_step_tokens": 12}
    texts = []
    for fails in (False, True):
        with llm(stock.saved("olmoe").folder, machine, **options) as model:
            if fails:
                fail_where(model, method, lambda work: len(work.pieces) > 1)
            texts.append([one.tokens for one in model.generate(FINE, DRAWN)])
            assert (model.stats().failed_steps > TOKENS) == fails
    assert texts[0] == texts[1]


@pytest.mark.parametrize("where", ["sample", "log-probabilities", "text", "grammar"])
def test_what_follows_the_step_fails_alone(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four requests that draw, the second: the others draw as without it."""
    params = [SamplingParams(max_tokens=TOKENS, seed=n, logprobs=1) for n in range(4)]
    with llm(stock.saved("mixtral").folder, max_sequences=4, max_step_tokens=40) as model:
        want = model.generate(FINE[:4], params)
        processor, batcher = model.model.input_processor, model.model.batcher
        pairs = zip(FINE, params, strict=False)
        requests = [processor.request(prompt, each) for prompt, each in pairs]
        bad = requests[1]

        def fails(*_: Any) -> Any:
            raise Poisoned(where)

        def fails_with_it(whole: Callable[..., Any]) -> Callable[..., Any]:
            """It gets the rows' states or parameters last."""

            def checked(*given: Any) -> Any:
                rows = [getattr(row, "params", row) for row in given[-1]]
                return fails() if bad.params in rows else whole(*given)

            return checked

        if where == "sample":
            sampler = batcher._sampler
            monkeypatch.setattr(sampler, "sample", fails_with_it(sampler.sample))
        elif where == "log-probabilities":  # which come after the draw
            from moesaic.engine.sampling import sampler as module
            from moesaic.engine.sampling.sampled import with_logprobs

            monkeypatch.setattr(module, "with_logprobs", fails_with_it(with_logprobs))
        elif where == "text":
            monkeypatch.setattr(bad.output, "feed", fails)
        else:
            bad.sampling.constraint = _Stuck()  # type: ignore[assignment]
        for request in requests:
            batcher.submit(request)
        while not batcher.idle:
            batcher.step()
    assert isinstance(bad.failure, Poisoned)
    for request, one in zip(requests, want, strict=True):
        assert request is bad or request.completion().tokens == one.tokens


class _Stuck:
    failure, complete = None, False

    def forbidden(self, vocabulary: int) -> Any:
        raise Poisoned("grammar")


@pytest.mark.parametrize("comes_again", [False, True])
def test_a_recording_has_whole_documents_or_is_not_written(
    tmp_path: Path, comes_again: bool
) -> None:
    path = tmp_path / "trace.moet"
    with llm(stock.saved("olmoe").folder, record=path) as model:
        if comes_again:
            poison(model)
            with pytest.raises(Poisoned):
                model.generate([*FINE[:2], BAD], greedy(3))
        else:
            fail_where(model, "wait", lambda work: len(work.pieces) > 1)
            model.generate(FINE[:3], greedy(3))
            assert model.stats().failed_steps > 0
    if comes_again:
        assert not path.exists()
    else:
        lengths = sorted(len(document) for document in read(path))
        assert lengths == sorted(len(prompt) + 2 for prompt in FINE[:3])


class Batch:
    """The items are numbers, and an attempt fails if it contains an odd one."""

    def __init__(self) -> None:
        self.tried: list[list[int]] = []

    def attempt(self, items: Sequence[int]) -> int:
        self.tried.append(list(items))
        if any(item % 2 for item in items):
            raise ValueError(str(items))
        return len(items)

    def run(self, items: Sequence[int]) -> list[str]:
        return run_isolated(
            items, self.attempt, lambda some, _: [f"{n}" for n in some], lambda n, _: f"{n} failed"
        )


def test_halves_are_tried_until_the_guilty_are_alone() -> None:
    assert Batch().run([]) == []
    batch = Batch()
    assert batch.run([2, 4, 6]) == ["2", "4", "6"]
    assert batch.tried == [[2, 4, 6]]
    batch = Batch()
    assert batch.run([2, 4, 5, 6]) == ["2", "4", "5 failed", "6"]
    assert batch.tried == [[2, 4, 5, 6], [2, 4], [5, 6], [5], [6]]
    assert Batch().run([1, 3]) == ["1 failed", "3 failed"]


def test_an_error_that_names_its_rows_saves_the_search() -> None:
    tried: list[list[int]] = []

    def attempt(items: Sequence[int]) -> None:
        tried.append(list(items))
        if 5 in items:
            raise FailedRows([items.index(5)], "five")

    outcomes = run_isolated([2, 5, 6], attempt, lambda some, _: list(some), lambda n, _: -n)
    assert (outcomes, tried) == ([-5, 2, 6], [[2, 5, 6], [2, 6]])


def test_interruptions_and_what_comes_after_are_passed_on() -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_isolated([1, 2], interrupted, lambda some, _: [], lambda n, _: n)
    with pytest.raises(ZeroDivisionError):
        run_isolated([1, 2], lambda _: None, lambda some, _: [1 // 0], lambda n, _: n)
