"""Answers questions with a loaded model, batched up to its capacity, and judges the answers as they
finish. Needs torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from time import perf_counter

from moesaic.core.errors import MoesaicError
from moesaic.engine.loading import LoadedModel
from moesaic.engine.request import Request
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.lab.evaluation.items import Question, Verdict
from moesaic.lab.evaluation.results import ItemResult


def answers(model: LoadedModel, questions: Iterable[Question]) -> Iterator[ItemResult]:
    """Results in the order in which they are finished. Closing the iterator cancels the others."""
    batcher, max_running = model.batcher, model.plan.capacity.sequences
    waiting = iter(questions)
    running: dict[Request, Question] = {}
    seconds = 0.0
    try:
        while True:
            while len(running) < max_running and (question := next(waiting, None)) is not None:
                request = _request(model, question)
                running[request] = question
                batcher.submit(request)
            if not running:
                return
            started = perf_counter()
            updates = batcher.step()
            seconds += perf_counter() - started
            for request, chunk in updates:
                if chunk.finish_reason is not None:
                    yield _result(running.pop(request), request, seconds)
                    seconds = 0.0
    finally:
        for request in running:
            batcher.cancel(request)


def _request(model: LoadedModel, question: Question) -> Request:
    params = SamplingParams(max_tokens=question.max_tokens, temperature=0.0, stop=question.stop)
    return model.input_processor.request(question.prompt, params)


def _result(question: Question, request: Request, seconds: float) -> ItemResult:
    text = request.completion().text or ""
    if request.failure is not None and not isinstance(request.failure, MoesaicError):
        raise request.failure
    if request.failure is not None:
        verdict = Verdict(False, str(request.failure))
    else:
        verdict = question.judge(text)
    return ItemResult(
        task=question.task,
        item=question.item,
        group=question.group,
        kind=question.kind,
        right=verdict.right,
        why=verdict.why,
        answer=text,
        expected=question.expected,
        cut=request.finish_reason == "length",
        prompt_tokens=len(question.prompt),
        tokens=len(request.sampled),
        seconds=seconds,
    )
