"""The requests of `benchmarks.load`, drawn from a seed: prompts as token ids, how many tokens each
answer has, when each arrives. Equal arguments give equal requests, whatever commit is measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, log
from statistics import NormalDist, mean
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Lengths:
    """A log-normal distribution of lengths, cut at `low` and `high`.

    Lengths are its quantiles at (i + 1/2) / n in random order: runs with few requests have nearly
    the mean of runs with many, and a single request has the median."""

    median: int
    sigma: float
    low: int
    high: int

    @classmethod
    def fixed(cls, length: int) -> Lengths:
        return cls(length, 0.0, length, length)

    def quantiles(self, count: int) -> list[int]:
        normal = NormalDist(log(self.median), self.sigma) if self.sigma else None
        shares = [(number + 0.5) / count for number in range(count)]
        values = [exp(normal.inv_cdf(share)) if normal else self.median for share in shares]
        return [min(max(round(value), self.low), self.high) for value in values]

    def mean(self) -> int:
        return round(mean(self.quantiles(1000)))


PROMPTS, ANSWERS = Lengths(256, 1.0, 16, 2048), Lengths(64, 0.7, 8, 256)
QUICK_PROMPTS, QUICK_ANSWERS = Lengths(48, 0.8, 8, 256), Lengths(12, 0.5, 4, 32)


@dataclass(frozen=True, slots=True)
class Workload:
    requests: int  # at the same time, or of one stream of arrivals
    prompts: Lengths = PROMPTS
    answers: Lengths = ANSWERS
    shared: float = 0.0  # share of the prompts that begin with the common prefix
    prefix_tokens: int = 128
    rate: float | None = None  # arrivals per second, a Poisson process; None: all at once
    seed: int = 0
    batches: int = 1  # so often, one after another

    def draw(self, vocabulary: int, context: int) -> list[list[Ask]]:
        """The requests of every batch. Prompts are cut where they and their answer are longer than
        the context. A prompt with the prefix has at least one token of its own after it."""
        random, count = np.random.default_rng((self.seed, self.requests)), self.all_requests
        prompts = random.permutation(self.prompts.quantiles(count)).tolist()
        answers = random.permutation(self.answers.quantiles(count)).tolist()
        prefix = random.integers(vocabulary, size=self.prefix_tokens).tolist()
        begins = random.permutation(count) < round(self.shared * count)
        waits = random.exponential(size=(self.batches, self.requests))
        arrivals = waits.cumsum(axis=1) / self.rate if self.rate else np.zeros_like(waits)
        asks = []
        for length, answer, shares, arrival in zip(
            prompts, answers, begins, arrivals.ravel().tolist(), strict=True
        ):
            most = context - answer
            assert most > 0, f"an answer of {answer} tokens does not fit a context of {context}"
            own = random.integers(vocabulary, size=length).tolist()
            prompt = [*prefix, *own[: max(length - len(prefix), 1)]] if shares else own
            asks.append(Ask(prompt[:most], answer, arrival))
        return [asks[at : at + self.requests] for at in range(0, count, self.requests)]

    def in_round(self, number: int) -> Workload:
        """Other tokens of the same lengths: an engine keeps prompts that it has read."""
        return replace(self, seed=self.seed + number)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Workload:
        """From what `asdict` has made of one."""
        rest = dict(values)
        prompts, answers = (Lengths(**rest.pop(name)) for name in ("prompts", "answers"))
        return cls(prompts=prompts, answers=answers, **rest)

    @property
    def all_requests(self) -> int:
        return self.requests * self.batches


@dataclass(frozen=True, slots=True)
class Ask:
    """One request: all tokens of the answer are generated, an end of sequence included."""

    prompt: list[int]
    answer: int
    arrival_s: float = 0.0
