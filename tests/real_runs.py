"""Whole stock models on the real machine: loaded once per process, driven by any brain."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

import stock
from moesaic.core.report import Timeline
from moesaic.engine.assemble import load_store, on_store
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.decoder import Decoder
from moesaic.models.open_model import load_decoder, open_model
from moesaic.policies.belief import Belief
from moesaic.policies.brain import Brain
from moesaic.policies.cache import caches
from moesaic.policies.policy_set import with_options
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules
from stock_text import STEPS, greedy, prompt

PROMPT = prompt(40)


class Loaded(NamedTuple):
    decoder: Decoder
    store: ExpertStore

    @property
    def spec(self) -> ModelSpec:
        return self.decoder.architecture.spec

    def slots(self, share: float) -> int:
        return round(self.spec.num_expert_blocks * share)


class Said(NamedTuple):
    """Logits over a prompt and greedy text, and that text."""

    logits: torch.Tensor
    text: list[int]


@cache
def loaded(name: str, dtype: str = "fp32") -> Loaded:
    """One of the stock models, here; tests share it and leave it as it is."""
    return load(name, dtype)


def load(name: str, dtype: str = "fp32") -> Loaded:
    """A copy of one's own."""
    return opened(stock.saved(name).folder, dtype)


def opened(folder: Path, dtype: str = "fp32", expert_dtype: str | None = None) -> Loaded:
    model = open_model(folder)
    decoder = load_decoder(model, dtype)
    return Loaded(decoder, load_store(decoder, model.experts, expert_dtype or dtype))


@cache
def truth(name: str) -> Said:
    """What the stock model says to `PROMPT`, in fp32."""
    return Said(*greedy(stock.saved(name).model, PROMPT))


def settings(schedule: str, cache: str, prefetch: str, **changes: Any) -> EngineSettings:
    """An accelerator whose link takes longer than an expert's arithmetic, and checked plans."""
    usual: dict[str, Any] = {
        "accelerator": "emulated",
        "link_latency_us": 100.0,
        "max_step_tokens": 64,
        "threads": 1,
        "checked": True,
    }
    policies = {"schedule": schedule, "cache": cache, "prefetch": prefetch}
    return with_options(EngineSettings(), usual | policies | changes)


USUAL = settings("best-split", "two-speed", "impact")


def can_run(names: tuple[str, str, str]) -> bool:
    """Schedule, cache, prefetch: no oracles, and the dense part stays in the accelerator."""
    schedule, cache, prefetch = names
    oracle = caches.load(cache).needs_future or prefetches.load(prefetch).needs_future
    return not oracle and not schedules.load(schedule).dense_follows


@contextmanager
def running(
    model: Loaded,
    how: EngineSettings = USUAL,
    slots: int = 0,
    sequences: int = 1,
    brain: Brain | None = None,
    timeline: Timeline | None = None,
    device: str = "cpu",
    belief: Belief | None = None,
) -> Iterator[Runner]:
    """`brain` takes the place of the one that the settings name; `device` plays the GPU; `belief`
    is not measured again."""
    capacity = Capacity(slots, sequences, 128)
    runner = on_store(
        model.decoder, model.store, how, capacity, timeline=timeline, device=device, belief=belief
    )
    runner.brain = brain or runner.brain
    try:
        yield runner
    finally:
        runner.close()


@cache
def measured(name: str, accelerator: str = "emulated") -> Belief:
    """What a family's experts cost here, which takes a quarter of a short run to find out."""
    how = settings("best-split", "two-speed", "impact", accelerator=accelerator)
    with running(loaded(name), how, loaded(name).slots(0.25)) as runner:
        return runner.brain.belief


def say(runner: Runner, tokens: list[int] = PROMPT, steps: int = STEPS, slot: int = 0) -> Said:
    """Greedily, as the stock model is asked in `truth`."""
    seen = [runner.step(ForwardPass([Piece(slot, tokens, all_logits=True)]))]
    text = [int(seen[-1][-1].argmax())]
    for _ in range(steps):
        seen.append(runner.step(ForwardPass([Piece(slot, text[-1:])])))
        text.append(int(seen[-1][-1].argmax()))
    return Said(torch.cat(seen), text)
