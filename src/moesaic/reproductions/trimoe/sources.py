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

    @property
    def words(self) -> str:
        kept = f"{self.drift:.0%} of it drifting over {self.memory_steps:g} steps"
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
    "slow-drift": DataSet("more drift over more steps", 0.08, 0.27, 32.0),
}


@lru_cache(maxsize=64)
def _sigma(experts: int, top_k: int, cold_tokens: float) -> float:
    return fig_3_sigma(experts, top_k, cold_tokens)


def synthetic_choices(name: str, model: ModelSpec, batch: int, steps: int) -> Iterator[Ints]:
    """[layers, batch, top_k] of every step; a model has as many layers as it is given here with."""
    data = DATA_SETS[name]
    sigma = _sigma(model.num_experts, model.top_k, data.cold_tokens)
    process = LoadProcess(
        model.num_moe_layers, model.num_experts, model.top_k, batch,
        sigma, data.drift, data.memory_steps, seed=batch,
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
