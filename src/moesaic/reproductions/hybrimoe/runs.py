"""The simulated runs behind the rows, and how to do one: settings in, latency out."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import fmean
from typing import Any

from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.systems import load_system
from moesaic.reproductions.hybrimoe.paper import DTYPE
from moesaic.workloads.source import MemoryTrace, TraceSource

WINDOW = 64  # decode steps
DECODE_STEPS = WINDOW  # of figure 8
# Of what is stated as a number: over 64 tokens the mean decode speedup is 1.61 on the implied
# machine, over 256 1.81, over 768 1.87, over 2048 1.89.
SETTLED_STEPS = 12 * WINDOW
PROMPTS = 3
LATE = 8192  # the token from which runs replay that compare profiles
PROFILES = (256, LATE)


@dataclass(frozen=True, slots=True)
class Run:
    """One simulated run, by names only, so that it travels between processes. `length` is the
    prompt: prefilled, or in the KV cache while decoding. `tokens` are the decode steps. `policies`
    (schedule, cache, prefetch) stand in for a named system in the ablation."""

    model: str
    machine: str
    phase: str
    cache_ratio: float
    length: int
    system: str = ""
    policies: tuple[str, str, str] | None = None
    promote: bool = True
    trace: str | None = None
    tokens: int = DECODE_STEPS
    belief_error: tuple[tuple[str, float], ...] = ()
    profile: int | None = None  # tokens that placements start from, before `LATE`; None: as usual

    @property
    def steps(self) -> int:
        return self.tokens if self.phase == "decode" else PROMPTS

    def settings(self) -> Settings:
        decode = self.phase == "decode"
        return Settings(
            load_model(self.model),
            load_machine(self.machine),
            phase=self.phase,
            cache_ratio=self.cache_ratio,
            tokens=self.tokens if decode else self.length,
            context=self.length if decode else 0,
            prompts=PROMPTS,
            expert_dtype=DTYPE,
            dense_dtype=DTYPE,
            belief_error=dict(self.belief_error),
            policies=self._policies(),
            **self._start(),
        )

    def command(self) -> str:
        """The command that repeats this run."""
        decode = self.phase == "decode"
        words = ["moesaic", "simulate", "--model", self.model, "--machine", self.machine]
        words += ["--phase", self.phase, "--cache-ratio", f"{self.cache_ratio:g}"]
        words += ["--tokens", str(self.tokens if decode else self.length)]
        words += ["--context", str(self.length)] if decode else ["--prompts", str(PROMPTS)]
        words += ["--expert-dtype", DTYPE, "--dense-dtype", DTYPE]
        if self.system:
            words += ["--policies", self.system]
        for name, value in self._named_policies().items():
            words += [f"--{name}", value]
        if self.belief_error:
            error = ",".join(f"{lane}={factor:g}" for lane, factor in self.belief_error)
            words += ["--belief-error", error]
        if not self.promote:
            words.append("--no-promote")
        for name, value in self._start().items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        if self.trace is not None:
            words += ["--trace", self.trace]
        return shlex.join([*words, "--json"])

    def _start(self) -> dict[str, Any]:
        """Runs with profiles of different lengths measure the same tokens."""
        return {} if self.profile is None else {"profile_tokens": self.profile, "first_token": LATE}

    def _policies(self) -> PolicySet:
        if self.system:
            return load_system(self.system).policies
        assert self.policies is not None, "a run names its system or its policies"
        return PolicySet.of(**self._named_policies(), promote=self.promote)

    def _named_policies(self) -> dict[str, Any]:
        if self.policies is None:
            return {}
        return dict(zip(("schedule", "cache", "prefetch"), self.policies, strict=True))


def again(name: str, traces: Iterable[str | None]) -> str:
    """The command that gives one row of the reproduction again."""
    words = ["moesaic", "reproduce", "hybrimoe", "--only", name]
    folders = {str(Path(trace).parent) for trace in traces if trace is not None}
    for folder in folders:
        words += ["--traces", folder]
    return shlex.join(words)


@dataclass(frozen=True, slots=True)
class Outcome:
    latency_s: float
    hit_rate: float
    prediction_accuracy: tuple[float, ...]
    windows_s: tuple[float, ...]  # decode: the mean latency of every `WINDOW` steps


def execute(run: Run) -> Outcome:
    settings = run.settings()
    late = run.profile is not None
    result = simulate(settings, routing(run.model, run.phase, run.trace, late))
    return Outcome(
        result.mean_s,
        result.hit_rate,
        result.prediction_accuracy,
        _windows(result.latencies_s) if run.phase == "decode" else (),
    )


def _windows(latencies_s: tuple[float, ...]) -> tuple[float, ...]:
    starts = range(0, len(latencies_s), WINDOW)
    return tuple(fmean(latencies_s[start : start + WINDOW]) for start in starts)


@lru_cache(maxsize=8)
def routing(model: str, phase: str, trace: str | None, late: bool = False) -> TraceSource:
    """The routing every run of this model and phase replays, made once per process; `late`: long
    enough for those that begin at `LATE`.

    A longer synthetic trace only continues a shorter one, so this is what the single command
    would replay."""
    longest = Settings(
        load_model(model),
        load_machine("h200-emr16"),  # any machine: the routing does not depend on it
        phase=phase,
        cache_ratio=0.0,
        policies=PolicySet.of(prefetch="none"),
        tokens=1024,
        prompts=PROMPTS,
        expert_dtype=DTYPE,
        dense_dtype=DTYPE,
        first_token=LATE if late else None,
    )
    source = choose_workload(trace, longest).source
    return MemoryTrace(source.header, list(source.blocks()))
