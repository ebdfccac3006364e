"""What one simulated run is: validated before any work, frozen afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.hardware.dimms import NdpDevice
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.lab.fallback_script import check_ratio
from moesaic.lab.simulate.gpu_memory import Need, check_memory
from moesaic.machines.sim.kv_cache import IN_GPU_MEMORY, KV_CACHES
from moesaic.model_info.kv_dtypes import AS_COMPUTED, KV_DTYPES
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.expert_profile import ExpertProfile
from moesaic.policies.gate.base import Gate
from moesaic.policies.gate.reuse import ROUTE_AGAIN
from moesaic.policies.policy_checks import check_gate, check_together, needing_slots
from moesaic.policies.policy_set import PHASES, PolicySet
from moesaic.policies.shape import Shape
from moesaic.policies.systems import System

MAX_TOKENS = 10_000_000  # days of simulation; more is a typo
MAX_BELIEF_ERROR = 1000.0  # times too slow or too fast; more is a typo
USUAL_ACCURACY = 0.8  # of what is prefetched for tokens that run again
BELIEFS = {
    "measured": "probe the machine at a few token counts before the run (HybriMoE's warm-up)",
    "described": "compute every token count from the machine description",
}


@dataclass(frozen=True, slots=True)
class Settings:
    """One run of one model on one machine under one set of policies."""

    model: ModelSpec
    machine: MachineSpec
    phase: str = "decode"
    policies: PolicySet = field(default_factory=PolicySet)
    cache_ratio: float = 0.25  # share of all routed experts that GPU memory holds
    tokens: int = 256  # decode: measured steps; prefill: tokens per prompt
    batch: int = 1  # decode: sequences in parallel
    context: int = 0  # decode: tokens in the KV cache before the trace's own
    kv_cache: str = IN_GPU_MEMORY  # where it lies, one of KV_CACHES
    kv_dtype: str = AS_COMPUTED  # of layers that keep every token
    prompts: int = 4  # prefill: measured prompts
    warmup: int | None = None  # steps before measuring; None: 32 decode steps or 1 prompt
    profile_tokens: int = 256  # of the trace before what is replayed: the initial placement's
    first_token: int | None = None  # of the trace that is replayed; None: the one after the profile
    placement: ExpertProfile | None = None  # instead of the profile
    expert_dtype: str = "bf16"
    dense_dtype: str = "bf16"
    belief: str = "measured"
    # device or link -> believed cost over the one that `belief` found, for what-if studies
    belief_error: Mapping[str, float] = field(default_factory=dict)
    seed: int = 0  # of the synthetic trace, where no trace is given
    fallback_ratio: float | None = None  # share of tokens that a gate runs again, or of drafts
    # that are wrong; None: by the confidence that the trace has
    # share of what a rejected pass wanted that is used when its tokens run again: a trace has one
    # routing for both passes, and MoBiLE says "above 80 %". None: see `wants_right`
    prefetch_accuracy: float | None = None
    checked: bool = False  # prove every plan legal while running

    def __post_init__(self) -> None:
        _known("phase", self.phase, PHASES)
        _known("belief", self.belief, BELIEFS)
        _known("place of the KV cache", self.kv_cache, KV_CACHES)
        _known("KV dtype", self.kv_dtype, KV_DTYPES)
        for name in ("tokens", "batch", "prompts"):
            if getattr(self, name) < 1:
                raise ImpossibleSetting(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("warmup_steps", "profile_tokens", "skipped_tokens", "context", "seed"):
            if getattr(self, name) < 0:
                raise ImpossibleSetting(f"{name} is {getattr(self, name)}; it cannot be negative")
        if self.tokens_needed > MAX_TOKENS:
            raise ImpossibleSetting(
                f"this run would route {self.tokens_needed} tokens; at most {MAX_TOKENS} can be "
                "simulated at once: use fewer tokens, prompts or sequences"
            )
        if not 0.0 <= self.cache_ratio <= 1.0:
            raise ImpossibleSetting(
                f"cache ratio is {self.cache_ratio}; it is the share of all routed experts kept in "
                "GPU memory and must lie between 0 and 1"
            )
        if self.skipped_tokens < self.profile_tokens:
            raise ImpossibleSetting(
                f"the profile has {self.profile_tokens} tokens, and the trace is replayed from "
                f"token {self.first_token} on, with fewer before it: begin later (--first-token), "
                "or profile fewer (--profile-tokens)"
            )
        self._check_placement()
        self._check_belief_error()
        check_together(self.policies)
        gate = check_gate(self.policies, self.model.top_k)
        check_ratio(self.fallback_ratio, [self.policies.gate.name], gate.reruns or gate.draft > 0)
        self._check_prefetch_accuracy(gate)
        self._check_slots()
        check_memory(self.need, self.machine, self.policies, self.cache_ratio)
        self._check_units()

    @property
    def slots(self) -> int:
        """How many experts GPU memory holds."""
        layers, experts = self.model.num_moe_layers, self.model.num_experts
        return self.policies.slots_at(self.cache_ratio, layers, experts)

    @property
    def skipped_tokens(self) -> int:
        """The tokens before the first that is replayed; the profile is the last of them."""
        return self.profile_tokens if self.first_token is None else self.first_token

    @property
    def wants_right(self) -> float:
        """Share of what a rejected pass wanted that its tokens use when they run again: all of it
        where the gate binds them to it."""
        if check_gate(self.policies, self.model.top_k).reuse != ROUTE_AGAIN:
            return 1.0
        return USUAL_ACCURACY if self.prefetch_accuracy is None else self.prefetch_accuracy

    @property
    def warmup_steps(self) -> int:
        if self.warmup is not None:
            return self.warmup
        return 32 if self.phase == "decode" else 1

    @property
    def steps(self) -> int:
        """Measured steps."""
        return self.tokens if self.phase == "decode" else self.prompts

    @property
    def tokens_per_step(self) -> int:
        return self.batch if self.phase == "decode" else self.tokens

    @property
    def tokens_needed(self) -> int:
        """Tokens a trace must have for profile, warm-up and measurement."""
        return self.skipped_tokens + (self.warmup_steps + self.steps) * self.tokens_per_step

    @property
    def need(self) -> Need:
        """What is to be in GPU memory."""
        decodes = self.phase == "decode"
        return Need(
            self.model,
            self.expert_dtype,
            self.dense_dtype,
            self.slots,
            self.batch if decodes else 1,
            self.tokens_per_step,
            self.context if decodes else 0,
            self.warmup_steps + self.steps if decodes else self.tokens,
            self.kv_cache,
            self.kv_dtype,
        )

    def with_system(self, system: System) -> Settings:
        return replace(self, policies=system.policies)

    def _check_placement(self) -> None:
        model = self.model
        shape = Shape(model.num_moe_layers, model.num_experts, model.top_k)
        if self.placement is not None and self.placement.model.shape != shape:
            raise ImpossibleSetting(
                f"the placement is of {self.placement.model.name}, and {model.name} has another "
                "shape: give the file of this model"
            )

    def _check_prefetch_accuracy(self, gate: Gate) -> None:
        given = self.prefetch_accuracy
        if given is None:
            return
        if not 0.0 < given <= 1.0:
            raise ImpossibleSetting(
                f"prefetch accuracy is {given:g}; it is a share and must be above 0 and at most 1"
            )
        if given < 1.0 and gate.reuse != ROUTE_AGAIN:
            raise ImpossibleSetting(
                f"a prefetch accuracy of {given:g} was given, but gate {self.policies.gate.text!r} "
                "lets tokens that run again use exactly what the rejected pass wanted, so that all "
                "of it is right: leave it out, or use reuse=none"
            )

    def _check_belief_error(self) -> None:
        lanes = self.machine.topology().lanes
        for name, factor in self.belief_error.items():
            _known("device or link of belief error", name, lanes)
            if not 1 / MAX_BELIEF_ERROR <= factor <= MAX_BELIEF_ERROR:
                raise ImpossibleSetting(
                    f"belief error of {name} is {factor:g}; it is the believed cost over the true "
                    f"one and must lie between {1 / MAX_BELIEF_ERROR:g} and "
                    f"{MAX_BELIEF_ERROR:g}: 2 believes that {name} takes twice as long as it "
                    "does, 0.5 half as long"
                )

    def _check_slots(self) -> None:
        schedule = needing_slots(self.policies, (self.phase,))
        if self.slots == 0 and schedule is not None:
            least = 1.0 / self.model.num_experts
            raise ImpossibleSetting(
                f"schedule {schedule!r} computes every expert on the GPU, but cache ratio "
                f"{self.cache_ratio} leaves no GPU slot for {self.model.name}: use at least "
                f"{least:.4g}, or a schedule that can use the CPU"
            )

    def _check_units(self) -> None:
        """Compute units of DIMMs multiply few precisions."""
        for device in self.machine.flat.devices.values():
            if isinstance(device, NdpDevice) and not device.multiplies(self.expert_dtype):
                stated = ", ".join(device.matmul_tflops)
                raise ImpossibleSetting(
                    f"the {device.name} of {self.machine.name} cannot multiply {self.expert_dtype} "
                    f"weights, only {stated}: use --expert-dtype {stated}, or a machine "
                    "description with ndp.count 0, or one that states how fast they do it "
                    f"([ndp.integer_tflops] {self.expert_dtype})"
                )


def _known(kind: str, name: str, known: object) -> None:
    names = list(known)  # type: ignore[call-overload]
    if name not in names:
        raise UnknownName(kind, name, names)
