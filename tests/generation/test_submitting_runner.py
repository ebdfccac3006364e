"""A real model on a machine that runs steps by itself, as far as its caller can tell: when they are
collected."""

from __future__ import annotations

import pytest
import torch
from small_llms import greedy, llm, prompts, stock_greedy

import stock
from moesaic import LLM
from moesaic.core.body import Decider
from moesaic.engine.runner import Runner
from moesaic.machines.real.forward_pass import GREEDY, ForwardPass, Piece
from moesaic.machines.real.machine import Machine

TOKENS = 6


class Later:
    """In front of a machine's own functions: it takes passes that are wanted ahead, and runs them
    when they are collected. It samples where no logits are needed, always the best token."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._whole = {name: getattr(machine, name) for name in ("submit", "collect", "abandon")}
        self._work: tuple[ForwardPass, Decider] | None = None
        self._sampled = False
        self.submitted = 0
        self.fails = False
        for name in ("refuses", "submit", "collect", "abandon"):
            setattr(machine, name, getattr(self, name))

    def refuses(self, work: ForwardPass, brain: Decider) -> str | None:
        assert work.ahead
        return None

    def submit(self, work: ForwardPass, brain: Decider) -> None:
        assert self._work is None, "a step is under way"
        if work.ahead:
            self._work = work, brain
            self.submitted += 1
        else:
            self._begin(work, brain)

    def _begin(self, work: ForwardPass, brain: Decider) -> None:
        self._sampled = work.sampling is not None
        self._whole["submit"](ForwardPass(work.pieces), brain)

    def collect(self) -> torch.Tensor:
        ahead, self._work = self._work, None
        if ahead is not None:
            self._begin(*ahead)
        output: torch.Tensor = self._whole["collect"]()
        if ahead is not None and self.fails:
            raise RuntimeError("lost")
        return output.argmax(-1) if self._sampled else output

    def abandon(self) -> None:
        self._work = None
        self._whole["abandon"]()


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
        runner.step(ForwardPass([Piece(0, [1, 2, 3])]))
        first = runner.report
        runner.submit(ForwardPass([Piece(0, [4], sampling=GREEDY)], ahead=True))
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
        runner.step(ForwardPass([Piece(0, [1, 2, 3])]))
        runner.submit(ForwardPass([Piece(0, [4])], ahead=True))
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

        def begun_and_failed(work: ForwardPass, brain: Decider) -> None:
            submit(work, brain)
            if work.ahead:
                raise RuntimeError("lost")

        if where == "submit":
            monkeypatch.setattr(model.model.runner.machine, "submit", begun_and_failed)
        said = model.generate(prompts(), greedy(TOKENS))
        stats = model.stats()
    assert stats.failed_steps == later.submitted >= TOKENS - 2
    assert [list(each.tokens) for each in said] == [
        stock_greedy(saved.model, prompt, TOKENS) for prompt in prompts()
    ]
