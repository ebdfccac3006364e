"""What a model's runs have cost so far: tokens, steps, hits, bytes, and the engine's own time."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.offloading import CPU, GPU, PCIE
from moesaic.core.units import NS_PER_S, NS_PER_US
from moesaic.engine.gate_stats import NO_GATE, GateCounter, GateStats
from moesaic.engine.request import Request
from moesaic.engine.runner import Runner
from moesaic.engine.waiting_requests import WaitingRequests
from moesaic.machines.real.forward_pass import ForwardPass


@dataclass(frozen=True, slots=True)
class BlockStats:
    """The blocks of the KV cache at this moment."""

    total: int = 0
    used: int = 0  # by running requests, or kept
    shared: int = 0  # by several running requests
    kept: int = 0  # of ended requests only; given up when blocks are needed
    checkpoints: int = 0  # of windows and states
    checkpoint_bytes: int = 0
    copies: int = 0  # in main memory, of blocks that an accelerator has given up
    most_copies: int = 0
    loaded_tokens: int = 0  # that came back from there


@dataclass(frozen=True, slots=True)
class QueueStats:
    """Requests at this moment, and how long those that have begun waited."""

    running: int = 0
    waiting: int = 0
    waiting_tokens: int = 0
    begun: int = 0
    wait_s: float = 0.0  # of all that have begun together
    longest_wait_s: float = 0.0
    preemptions: int = 0  # how often a running one waited again, since blocks were short
    resumed_tokens: int = 0  # of those, found in the KV cache when they went on


@dataclass(frozen=True, slots=True)
class LaneStats:
    """How long each lane has worked; None: there is none. Copies count as long as one takes
    alone."""

    gpu_s: float | None = None
    cpu_s: float = 0.0
    link_s: float | None = None


@dataclass(frozen=True, slots=True)
class RunStats:
    """Statistics since the model was loaded. Steps that were interrupted do not count."""

    prompt_tokens: int  # read
    generated_tokens: int
    steps: int
    decode_steps: int  # of those, the ones without any prompt
    step_s: float  # in all steps together
    hit_rate: float | None  # share of the wanted experts found in the accelerator; None: it has
    # no slots, or there was no step
    bytes_moved: int  # over its link
    overhead_us: float | None  # per routed layer of a decode step: all but the network and the
    # experts; None: there was no decode step
    rerun_tokens: int = 0  # rejected by the gate and run again
    cached_tokens: int = 0  # of prompts, not read because their KV was there
    kept_tokens: int = 0  # of ended requests, whose KV is there now
    failed_steps: int = 0  # whose requests were then run in smaller steps, or ended if alone
    gate: GateStats = NO_GATE
    blocks: BlockStats = BlockStats()
    queue: QueueStats = QueueStats()
    lanes: LaneStats = LaneStats()
    wanted_experts: int = 0  # by all layers of all steps
    expert_hits: int = 0  # of those, found in the accelerator


class StatsCounter:
    """Adds up a runner's steps."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._prompt_tokens = self._generated_tokens = self._steps = self._decode_steps = 0
        self._step_ns = self._overhead_ns = self._decode_layers = 0
        self._hits = self._active = self._rerun_tokens = self._cached_tokens = 0
        self._failed_steps = self._begun = self._preemptions = self._resumed_tokens = 0
        self._wait_ns = self._longest_wait_ns = 0
        self._bytes_before = runner.bytes_moved
        self._gate = GateCounter(runner.gate_name, runner.reads_of_a_token)

    def add_step(self, work: ForwardPass) -> None:
        """The one just done."""
        report = self._runner.report
        times = self._runner.machine.times
        assert report is not None, "a step has been done"
        active = sum(layer.active for layer in report.layers)
        prompt_tokens = self._gate.add_pass(work, times.step_ns, active)
        self._steps += 1
        self._step_ns += times.step_ns
        self._prompt_tokens += prompt_tokens
        self._hits += sum(layer.hits for layer in report.layers)
        self._active += active
        if not prompt_tokens:
            self._decode_steps += 1
            self._overhead_ns += times.overhead_ns
            self._decode_layers += len(report.layers)

    def add_generated(self, tokens: int) -> None:
        self._generated_tokens += tokens

    def add_reruns(self, tokens: int) -> None:
        self._rerun_tokens += tokens

    def add_begun(self, request: Request) -> None:
        """It has its first slot."""
        assert request.started_ns is not None, "it has begun"
        waited = request.started_ns - request.submitted_ns
        self._begun += 1
        self._wait_ns += waited
        self._longest_wait_ns = max(self._longest_wait_ns, waited)
        self._cached_tokens += request.cached_tokens

    def add_preemption(self) -> None:
        self._preemptions += 1

    def add_resumed(self, tokens: int) -> None:
        """A request that was preempted goes on, and so many of its tokens are still there."""
        self._resumed_tokens += tokens

    def add_failed_step(self) -> None:
        self._failed_steps += 1

    def add_check(self, drafted: int, stood: int) -> None:
        """So many drafts were checked, and so many tokens stood, the check's own included."""
        self._gate.add_check(drafted, stood)

    def stats(self) -> RunStats:
        slots = self._runner.machine.residency.slots
        overhead_us = self._overhead_ns / NS_PER_US
        return RunStats(
            prompt_tokens=self._prompt_tokens,
            generated_tokens=self._generated_tokens,
            steps=self._steps,
            decode_steps=self._decode_steps,
            step_s=self._step_ns / NS_PER_S,
            hit_rate=self._hits / self._active if slots and self._active else None,
            bytes_moved=self._runner.bytes_moved - self._bytes_before,
            overhead_us=overhead_us / self._decode_layers if self._decode_layers else None,
            rerun_tokens=self._rerun_tokens,
            cached_tokens=self._cached_tokens,
            failed_steps=self._failed_steps,
            gate=self._gate.stats(self._runner.prefetch_accuracy),
            lanes=self._lanes(),
            wanted_experts=self._active,
            expert_hits=self._hits,
        )

    def _lanes(self) -> LaneStats:
        machine = self._runner.machine
        busy = machine.busy_ns
        cpu_s = busy.get(CPU, 0) / NS_PER_S
        if not machine.capabilities.moves:
            return LaneStats(cpu_s=cpu_s)
        return LaneStats(busy.get(GPU, 0) / NS_PER_S, cpu_s, busy.get(PCIE, 0) / NS_PER_S)

    def queue(self, waiting: WaitingRequests, running: int) -> QueueStats:
        return QueueStats(
            running=running,
            waiting=len(waiting),
            waiting_tokens=waiting.tokens,
            begun=self._begun,
            wait_s=self._wait_ns / NS_PER_S,
            longest_wait_s=self._longest_wait_ns / NS_PER_S,
            preemptions=self._preemptions,
            resumed_tokens=self._resumed_tokens,
        )
