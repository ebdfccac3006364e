"""A real model on a machine that runs steps by itself, as far as its caller can tell: when they are
collected."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small_llms import greedy, llm, prompts, stock_greedy

import stock
from moesaic import LLM
from moesaic.core.body import Decider
from moesaic.core.report import StepReport
from moesaic.engine.runner import Runner, SequenceInput
from moesaic.machines.real.real_machine import ForwardPass, RealMachine
from moesaic.machines.real.row_sampling import GREEDY

TOKENS = 6


class Later:
    """Takes the place of a machine's own functions. It samples where no logits are needed, always
    the best token."""

    def __init__(self, machine: RealMachine) -> None:
        self._machine, self._whole = machine, machine.step
        self._work: tuple[ForwardPass, Decider] | None = None
        self.submitted = 0
        self.fails = False
        for name in ("step", "submit", "collect", "collected_report"):
            setattr(machine, name, getattr(self, name))

    def step(self, work: ForwardPass, brain: Decider) -> StepReport:
        assert self._work is None, "a step is under way"
        report = self._whole(work, brain)
        if work.sampling is not None:
            self._machine.output = self._machine.output.argmax(-1)
        return report

    def submit(self, *work: Any) -> bool:
        assert self._work is None, "a step is under way"
        self._work = work
        self.submitted += 1
        return True

    def collect(self) -> torch.Tensor:
        assert self._work is not None, "nothing was submitted"
        work, self._work = self._work, None
        self._report = self.step(*work)
        if self.fails:
            raise RuntimeError("lost")
        return self._machine.output

    def collected_report(self) -> StepReport:
        return self._report


def submitting(model: LLM) -> tuple[Runner, Later]:
    runner = model.model.runner
    return runner, Later(runner.machine)


def test_answers_are_the_stock_models() -> None:
    saved = stock.saved("qwen3-moe")
    with llm(saved.folder) as model:
        _, later = submitting(model)
        said = model.generate(prompts(), greedy(TOKENS))
        stats = model.stats()
    assert later.submitted >= TOKENS - 2
    assert [list(each.tokens) for each in said] == [
        stock_greedy(saved.model, prompt, TOKENS) for prompt in prompts()
    ]
    assert stats.generated_tokens == TOKENS * len(prompts())


def test_a_report_is_of_the_step_that_was_collected() -> None:
    with llm(stock.saved("qwen3-moe").folder) as model:
        runner, _ = submitting(model)
        before = runner.report
        assert before is None
        runner.step([SequenceInput(0, [1, 2, 3])])
        first = runner.report
        assert runner.submit([SequenceInput(0, [4], sampling=GREEDY)])
        assert runner.report is first
        assert runner.cache.length(0) == 3
        runner.collect()
        second = runner.report
        assert first is not None
        assert second is not None
        assert second.start_ns >= first.end_ns
        assert runner.cache.length(0) == 4


def test_a_step_that_fails_leaves_the_sequence_as_it_was() -> None:
    with llm(stock.saved("qwen3-moe").folder) as model:
        runner, later = submitting(model)
        runner.step([SequenceInput(0, [1, 2, 3])])
        assert runner.submit([SequenceInput(0, [4])])
        later.fails = True
        with pytest.raises(RuntimeError, match="lost"):
            runner.collect()
        assert runner.cache.length(0) == 3


@pytest.mark.parametrize("where", ["collect", "submit"])
def test_submitted_steps_that_fail_run_again_as_ordinary_ones(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = stock.saved("qwen3-moe")
    with llm(saved.folder) as model:
        _, later = submitting(model)
        later.fails = where == "collect"
        submit = later.submit

        def begun_and_failed(*work: Any) -> bool:
            submit(*work)
            raise RuntimeError("lost")

        if where == "submit":
            monkeypatch.setattr(model.model.runner.machine, "submit", begun_and_failed)
        said = model.generate(prompts(), greedy(TOKENS))
        stats = model.stats()
    assert stats.failed_steps == later.submitted >= TOKENS - 2
    assert [list(each.tokens) for each in said] == [
        stock_greedy(saved.model, prompt, TOKENS) for prompt in prompts()
    ]
