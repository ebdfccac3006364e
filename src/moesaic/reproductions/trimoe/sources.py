"""The routing that runs replay: synthetic sources with the skew of the paper's Fig. 3 or of real
traces, and the real traces themselves, as what every token of every step chooses.

The paper's data sets, LMSys and CodeAlpaca, are not routed here. `chat` has the skew of Fig. 3 and
drifts so that the predictor is right as often as the paper says (78 % at batch 512); `code` is a
little more skewed, as text of one kind is in the real traces, and drifts more slowly."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.model_spec import ModelSpec
from moesaic.workloads.source import TraceSource
from moesaic.workloads.synthetic.expert_loads import LoadProcess, fig_3_sigma

Ints = NDArray[np.int64]

PROFILE_STEPS = 32


@dataclass(frozen=True, slots=True)
class DataSet:
    """A synthetic source: `cold_tokens` is the share that the least used 70 % of experts get."""

    stands_for: str
    cold_tokens: float
    drift: float = 0.1
    memory_steps: float = 8.0
    levels: tuple[tuple[float, float], ...] = ()  # classes of experts: their share, their tokens'

    @property
    def words(self) -> str:
        kept = f"{self.drift:.0%} of it drifting over {self.memory_steps:g} steps"
        if self.levels:
            each = ", ".join(f"{tokens:.0%} on {share:.0%}" for share, tokens in self.levels)
            return f"synthetic routing, tokens in classes of experts: {each}; {kept}"
        return f"synthetic routing, 70% of experts get {self.cold_tokens:.1%} of tokens, {kept}"


FIG_3 = {
    "chat": DataSet("LMSys: skew of the paper's Fig. 3", 0.08),
    "code": DataSet("CodeAlpaca: more skew, slower drift", 0.065, memory_steps=32.0),
}
REAL_SKEW = "real-skew"
DATA_SETS = {
    **FIG_3,
    REAL_SKEW: DataSet("skew of the real gpt-oss-20b trace at batch 128", 0.38),
    "steady": DataSet("no drift, as real traces whose sequences start at any time", 0.08, 0.0),
    "together": DataSet(
        "drift of the real gpt-oss-20b trace whose sequences start together", 0.08, 0.27, 3.0
    ),
    "three-classes": DataSet(
        "Fig. 3 read literally: few hot experts, 70% of the tokens on 30% warm ones",
        0.08,
        levels=((0.016, 0.22), (0.284, 0.70), (0.70, 0.08)),
    ),
    "three-classes-code": DataSet(
        "the same with more skew and slower drift",
        0.065,
        memory_steps=32.0,
        levels=((0.016, 0.22), (0.284, 0.715), (0.70, 0.065)),
    ),
    "slow-drift": DataSet("more drift over more steps", 0.08, 0.27, 32.0),
}


SEED_STRIDE = 10_007  # seeds of different batches stay apart
LEVEL_SIGMA = 0.5  # spread of the logarithms within a class


@dataclass(frozen=True, slots=True)
class LevelProcess(LoadProcess):
    """Experts in classes, each with a share of the tokens; within one they differ little."""

    levels: tuple[tuple[float, float], ...] = ()

    def _logs(self, rng: np.random.Generator, count: int) -> Iterator[NDArray[np.float64]]:
        base = np.log(level_weights(self.levels, self.experts, self.top_k))
        base = rng.permuted(np.tile(base, (self.layers, 1)), axis=1)
        for logs in LoadProcess._logs(self, rng, count):
            yield base + logs


def level_weights(
    levels: tuple[tuple[float, float], ...], experts: int, top_k: int
) -> NDArray[np.float64]:
    """The weight of every expert, hottest class first, so that a token chooses it as often as its
    class's share says: weight -log(1 - p) for the probability p, which stays below 0.95."""
    sizes = [max(round(share * experts), 1) for share, _ in levels[:-1]]
    sizes.append(experts - sum(sizes))
    chosen = [top_k * tokens / size for (_, tokens), size in zip(levels, sizes, strict=True)]
    each = np.repeat(np.minimum(chosen, 0.95), sizes)
    return np.asarray(-np.log1p(-each), dtype=np.float64)


@lru_cache(maxsize=64)
def _sigma(experts: int, top_k: int, cold_tokens: float) -> float:
    return fig_3_sigma(experts, top_k, cold_tokens)


def synthetic_choices(
    name: str, model: ModelSpec, batch: int, steps: int, seed: int = 0
) -> Iterator[Ints]:
    """[layers, batch, top_k] of every step; a model has as many layers as it is given here with."""
    drawn = batch + SEED_STRIDE * seed
    data = DATA_SETS[name]
    if data.levels:
        return LevelProcess(
            model.num_moe_layers, model.num_experts, model.top_k, batch,
            LEVEL_SIGMA, data.drift, data.memory_steps, seed=drawn, levels=data.levels,
        ).choices(steps)  # fmt: skip
    sigma = _sigma(model.num_experts, model.top_k, data.cold_tokens)
    process = LoadProcess(
        model.num_moe_layers, model.num_experts, model.top_k, batch,
        sigma, data.drift, data.memory_steps, seed=drawn,
    )  # fmt: skip
    return process.choices(steps)


def traced_choices(source: TraceSource, batch: int, steps: int) -> Iterator[Ints]:
    """The same of a recorded trace: sequence s reads the trace from its s-th part on, so that
    documents are in different places, and wraps around at the end."""
    experts = np.concatenate([block.experts for block in source.blocks()])
    if len(experts) < batch:
        raise ImpossibleSetting(
            f"the trace of {source.header.model} has {len(experts)} tokens; a batch of {batch} "
            "needs at least one for each sequence"
        )
    starts = np.arange(batch) * len(experts) // batch
    for step in range(steps):
        rows = experts[(starts + step) % len(experts), :, : source.header.top_k]
        yield np.ascontiguousarray(rows.transpose(1, 0, 2)).astype(np.int64)


def loads_of(choices: Ints, experts: int) -> Ints:
    """[layers, experts] from [layers, batch, top_k]."""
    layers = choices.shape[0]
    flat = choices.reshape(layers, -1) + np.arange(layers)[:, None] * experts
    return np.bincount(flat.ravel(), minlength=layers * experts).reshape(layers, experts)
