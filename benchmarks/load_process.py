"""Runs the workloads of `benchmarks.load` on an engine of this process (see `engine_process`).

It runs with this commit's package or with another one's, so it uses what both have: `AsyncLLM`,
its streams and `stats()`. Every request is a task that reads its own stream, as a server's handler
does, and notes when each token reached it.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from benchmarks.engine_process import Measure, answer_standard_input
from benchmarks.load_workload import Ask, Workload
from moesaic import AsyncLLM, SamplingParams
from moesaic.hardware.procfs import process_memory, reset_peak

# Words in names of statistics that are no counters.
LEVELS = {
    "kept", "held", "free", "used", "peak", "ratio", "rate", "us", "acceptance", "speedup",
    "blocks", "running", "waiting", "longest",
}  # fmt: skip
_WARM_PROMPT, _WARM_ANSWERS = 16, range(4, 12)


@dataclass(slots=True)
class Answer:
    """When a request was due and when its tokens reached it, seconds."""

    due: float
    prompt: int
    times: list[float] = field(default_factory=list)
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Served:
    """A batch of requests, from when it began."""

    began: float
    answers: list[Answer]

    @property
    def seconds(self) -> float:
        return max((each.times[-1] for each in self.answers if each.times), default=0) - self.began


class Measurement:
    """Runs workloads on an open engine."""

    def __init__(self, llm: AsyncLLM, gpu_before: int | None = None) -> None:
        self._llm, self._gpu_before = llm, gpu_before
        self._warmed = 0  # requests at the same time

    async def run(self, work: Workload) -> dict[str, Any]:
        llm = self._llm
        vocabulary, context = llm.model.spec.vocab_size, llm.model.plan.capacity.length
        batches = work.draw(vocabulary, context)
        if work.requests > self._warmed:
            await serve(llm, warming(work.requests, vocabulary))
            self._warmed = work.requests
        idle = process_memory().now
        reset_peak()
        before, cpu_before = numbers(llm.stats()), process_time()
        found = summary([await serve(llm, asks) for asks in batches])
        found["cpu_ms_token"] = 1e3 * (process_time() - cpu_before) / found["output_tokens"]
        found["memory_gb"] = {
            "idle": _gb(idle),
            "peak": _gb(process_memory().peak),
            "gpu": self._gpu_gb(),
        }
        return found | {"stats": difference(before, numbers(llm.stats()))}

    def _gpu_gb(self) -> float | None:
        now = gpu_bytes()
        return None if now is None or self._gpu_before is None else _gb(now - self._gpu_before)


async def serve(llm: AsyncLLM, asks: Sequence[Ask]) -> Served:
    began = perf_counter()
    tasks = (_ask(llm, each, began + each.arrival_s) for each in asks)
    return Served(began, await asyncio.gather(*tasks))


async def _ask(llm: AsyncLLM, ask: Ask, due: float) -> Answer:
    """The wait for a first token begins when the request is due, even if its task is late."""
    answer = Answer(due, len(ask.prompt))
    await asyncio.sleep(max(due - perf_counter(), 0))
    params = SamplingParams(max_tokens=ask.answer, temperature=0.0, ignore_eos=True)
    try:
        async for chunk in llm.stream(ask.prompt, params):
            if chunk.token is not None:
                answer.times.append(perf_counter())
    except Exception as error:  # it is counted, and the others go on
        answer.failure = f"{type(error).__name__}: {error}"
    return answer


def warming(requests: int, vocabulary: int) -> list[Ask]:
    """As many short requests, which end one after another: batches of every size are run."""
    random = np.random.default_rng(1)
    return [
        Ask(
            random.integers(vocabulary, size=_WARM_PROMPT).tolist(),
            _WARM_ANSWERS[number % len(_WARM_ANSWERS)],
        )
        for number in range(requests)
    ]


def summary(served: Sequence[Served]) -> dict[str, Any]:
    """Rates over the time until the last token of every batch; times in milliseconds."""
    answers = [answer for batch in served for answer in batch.answers]
    done = [each for each in answers if each.times]
    if not done:
        why = next((each.failure for each in answers if each.failure), "there are no tokens")
        raise SystemExit(f"no request has an answer: {why}")
    seconds = sum(batch.seconds for batch in served if any(a.times for a in batch.answers))
    prompts, tokens = sum(a.prompt for a in done), sum(len(a.times) for a in done)
    long = [each for each in done if len(each.times) > 1]
    each_token = [(a.times[-1] - a.times[0]) / (len(a.times) - 1) for a in long]
    return {
        "seconds": seconds,
        "prompt_tokens": prompts,
        "output_tokens": tokens,
        "output_tok_s": tokens / seconds,
        "total_tok_s": (prompts + tokens) / seconds,
        "ttft_ms": percentiles([each.times[0] - each.due for each in done]),
        "tpot_ms": percentiles(each_token),
        "gap_ms": percentiles([gap for each in long for gap in np.diff(each.times).tolist()]),
        "failed": [each.failure for each in answers if each.failure],
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    if not seconds:
        return None
    return {f"p{share}": float(np.percentile(seconds, share)) * 1e3 for share in (50, 99)}


def numbers(stats: object) -> dict[str, float]:
    """Every number that `stats()` of this commit has, those inside its records as `record.name`."""
    assert is_dataclass(stats), "stats() returns a dataclass"
    assert not isinstance(stats, type), "a value, not its class"
    return dict(_flat(asdict(stats), ""))


def _flat(values: dict[str, Any], prefix: str) -> list[tuple[str, float]]:
    found = []
    for name, value in values.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            found.append((prefix + name, value))
    return found


def difference(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """What the run has added to counters; other values (rates, what is there now) as they are."""
    return {
        name: value if LEVELS & set(re.split("[_.]", name)) else value - before.get(name, 0)
        for name, value in after.items()
    }


def gpu_bytes() -> int | None:
    """Taken on the whole GPU: not all of it is PyTorch's."""
    if not torch.cuda.is_available():
        return None
    free, total = torch.cuda.mem_get_info()
    return int(total - free)


def _gb(size: int | None) -> float | None:
    return None if size is None else size / 1e9


def main() -> None:
    before = gpu_bytes()

    def begin(llm: AsyncLLM) -> Measure:
        measuring = Measurement(llm, before)
        return lambda values: measuring.run(Workload.of(values))

    answer_standard_input(begin)


if __name__ == "__main__":
    main()
