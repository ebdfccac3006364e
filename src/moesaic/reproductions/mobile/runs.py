"""The simulated runs behind the rows: a system on the paper's machine, with a gate."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from functools import lru_cache

from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.policy_set import PolicySet
from moesaic.reproductions.mobile.paper import CACHE_RATIO, MACHINE
from moesaic.workloads.source import MemoryTrace, TraceSource

TOKENS = 256


@dataclass(frozen=True, slots=True)
class Run:
    """Loading on demand into an LRU cache, as the paper's baseline does, unless said otherwise."""

    model: str
    gate: str = "full"
    fallback_ratio: float | None = None
    prefetch: str = "none"
    prefetch_accuracy: float | None = 0.8  # None: of a gate that reuses, which has no other
    cache_ratio: float | None = None  # None: as many experts as a token uses

    @property
    def ratio(self) -> float:
        return CACHE_RATIO[self.model] if self.cache_ratio is None else self.cache_ratio

    def settings(self) -> Settings:
        return Settings(
            load_model(self.model),
            load_machine(MACHINE),
            policies=PolicySet.of(
                schedule="gpu-only", cache="lru", prefetch=self.prefetch, gate=self.gate
            ),
            cache_ratio=self.ratio,
            tokens=TOKENS,
            fallback_ratio=self.fallback_ratio,
            prefetch_accuracy=self.prefetch_accuracy,
        )

    def command(self) -> str:
        """The command that repeats this run."""
        words = ["moesaic", "simulate", "--model", self.model, "--machine", MACHINE]
        words += ["--trace", "synthetic", "--cache-ratio", f"{self.ratio:.6g}"]
        words += ["--tokens", str(TOKENS), "--schedule", "gpu-only", "--cache", "lru"]
        words += ["--prefetch", self.prefetch, "--gate", self.gate]
        if self.fallback_ratio is not None:
            words += ["--fallback-ratio", f"{self.fallback_ratio:g}"]
        if self.fallback_ratio is not None and self.prefetch_accuracy is not None:
            words += ["--prefetch-accuracy", f"{self.prefetch_accuracy:g}"]
        return shlex.join([*words, "--json"])

    def full(self) -> Run:
        """The paper's baseline under the same memory limit: all experts, nothing prefetched."""
        return replace(self, gate="full", fallback_ratio=None, prefetch="none")


def execute(run: Run) -> float:
    """Seconds per token."""
    settings = run.settings()
    return simulate(settings, _routing(run.model)).mean_s


@lru_cache(maxsize=4)
def _routing(model: str) -> TraceSource:
    source = choose_workload(None, Run(model).settings()).source
    return MemoryTrace(source.header, list(source.blocks()))
