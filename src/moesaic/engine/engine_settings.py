"""How a model is to be run: validated before any work, frozen afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from numbers import Integral, Real
from os import PathLike

from moesaic.core.capabilities import Capabilities
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.hardware.host import usable_cores
from moesaic.hardware.planned_host import PlannedHost
from moesaic.kernels.instruction_sets import REFERENCE
from moesaic.kernels.instruction_sets import choose as choose_kernel
from moesaic.machines.accelerators import ACCELERATORS, AUTO, Automatic, chosen_gpu
from moesaic.machines.accelerators import choose as choose_accelerator
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.model_info.kv_dtypes import AS_COMPUTED, KV_DTYPES
from moesaic.policies.policy_checks import check_real, check_together
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.systems import System

_NOT_YET = ("rocm", "hip", "metal", "xpu")
AUTO_BELIEF = "auto"
BELIEFS = {
    AUTO_BELIEF: "what `moesaic profile` wrote down of this GPU, CPU and threads, or else measured",
    "measured": "probe this machine at a few token counts before the run",
    "described": "believe what `moesaic profile` wrote down",
}
DTYPES = ("auto", "bf16", "fp16", "fp32")
_WHOLE = (
    "max_sequences", "max_step_tokens", "max_model_len", "kv_tokens", "threads",
    "experts_per_token", "max_queue", "max_queue_tokens",
)  # fmt: skip
_REAL = (
    "cache_ratio",
    "gpu_memory_gb",
    "link_gb_s",
    "link_latency_us",
    "kv_host_gb",
    "max_stall_ms",
)
_MAY_BE_NONE = (
    "max_sequences", "max_step_tokens", "max_model_len", "kv_tokens", "threads",
    "experts_per_token", "max_queue", "max_queue_tokens", "max_stall_ms", "cache_ratio",
    "gpu_memory_gb",
)  # fmt: skip
USUAL_SEQUENCES = 32  # that run at once
_THREADS_PER_CORE = 4  # more only wait for each other, and thousands end the process


class UsualSequences(int):
    """A number of sequences that the settings left open: fewer where memory is short."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Policies, precision and capacity; whether it fits is checked by the memory plan."""

    policies: PolicySet = field(default_factory=PolicySet)  # a whole set; single ones go by name
    dtype: str = "auto"  # what everything but the experts is computed in; auto: as published
    expert_dtype: str = "auto"  # of the routed experts; auto: as `dtype`
    dense_dtype: str = "auto"  # of all other matrices (see `DensePrecision`); auto: as `dtype`
    experts_per_token: int | None = None  # fewer than it was trained with; None: as trained
    kernel: str = "auto"  # instructions that the CPU computes experts with; auto: the best it has
    accelerator: str = AUTO  # becomes cuda where a GPU can be used, else none (see `Automatic`)
    cache_ratio: float | None = None  # share of experts in the accelerator; None: what fits, 0.25
    gpu_memory_gb: float | None = None  # what the accelerator may use; None: no limit of its own
    link_gb_s: float = 4.0  # bandwidth of the emulated accelerator's link
    link_latency_us: float = 20.0  # of one copy over it
    max_model_len: int | None = None  # tokens of one sequence; None: the model's, or what fits
    max_sequences: int | None = None  # that run at once; None: see `sequences`
    kv_tokens: int | None = None  # of all sequences together, kept ones too; None: what fits
    kv_dtype: str = AS_COMPUTED  # of layers that keep every token; auto: as `dtype`
    kv_host_gb: float = 0.0  # of main memory for prefixes that an accelerator has no room for
    max_queue: int | None = None  # requests that may wait; None: any number
    max_queue_tokens: int | None = None  # of their prompts; None: any number
    max_step_tokens: int | None = None  # longer prompts are fed in pieces; None: see `step_tokens`
    max_stall_ms: float | None = None  # of requests that decode, by prompts in the same step
    prefix_cache: bool = True  # ended sequences keep their KV until blocks are needed
    threads: int | None = None  # that compute; None: one for every core
    mmap: bool | None = None  # map a packed model's file; None: see packed_store.py
    belief: str = AUTO_BELIEF  # where the brain's cost estimates come from
    checked: bool = False  # check every plan while running
    batch_invariant: bool = False  # an answer has the same bits alone and beside other requests
    placement: str | PathLike[str] | None = None  # a file with expert uses to start from and add to
    quality_of: str | None = None  # the model that the gate was calibrated for; None: any
    host: PlannedHost | None = None  # another machine, for plans only; None: this one

    def __post_init__(self) -> None:
        object.__setattr__(self, "accelerator", choose_accelerator(self.accelerator, self.host))
        for kind, name, known in (
            ("accelerator", self.accelerator, ACCELERATORS),
            ("dtype", self.dtype, DTYPES),
            ("KV dtype", self.kv_dtype, KV_DTYPES),
            ("belief", self.belief, BELIEFS),
        ):
            if kind == "accelerator" and name in _NOT_YET:
                raise ImpossibleSetting(
                    f"accelerator {name!r}: there are kernels for NVIDIA's GPUs only. Use none or "
                    "emulated, or study the GPU with `moesaic simulate`"
                )
            if name not in known:
                raise UnknownName(kind, name, known)
        self._check_numbers()
        self._check_threads()
        self._check_device()
        check_together(self.policies)
        check_real(self.policies, self.capabilities)
        self._check_memory()

    def with_system(self, system: System) -> EngineSettings:
        return replace(self, policies=system.policies)

    @property
    def step_tokens(self) -> int:
        """How many tokens a step may have. With a GPU that experts are streamed to, more: each is
        brought once per step."""
        asked = self.max_step_tokens
        return self.capabilities.step_tokens if asked is None else asked

    @property
    def sequences(self) -> int:
        """How many run at once. More are faster together, where memory allows it: see
        `memory/several.py`, which the plan of a model follows."""
        return USUAL_SEQUENCES if self.max_sequences is None else self.max_sequences

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether what windows and states hold is kept for prompts that begin alike."""
        return self.prefix_cache and not self.batch_invariant

    @property
    def capabilities(self) -> Capabilities:
        """What a machine with this accelerator can do."""
        return ACCELERATORS[self.accelerator].capabilities

    @property
    def cores(self) -> int:
        """Threads that compute, unless `threads` says how many."""
        return usable_cores() if self.host is None else self.host.cores

    @property
    def native_kernels(self) -> bool:
        """Whether native kernels compute on the CPU. Refuses kernels that this computer lacks."""
        if self.host is not None:
            return self.kernel != REFERENCE
        return choose_kernel(self.kernel) != REFERENCE

    def without_gpu(self, reason: str) -> EngineSettings | None:
        """The same on the CPU, where the GPU was not asked for and cannot be used for this
        `reason`; None: it was asked for, by its name or by its memory, or the CPU cannot do it."""
        fields = (self.cache_ratio, self.gpu_memory_gb, self.placement)
        asked = any(each is not None for each in fields)
        if asked or not chosen_gpu(self.accelerator):
            return None
        try:
            return replace(self, accelerator=Automatic("none", reason))
        except ImpossibleSetting:
            return None

    def _check_device(self) -> None:
        """Use the CPU, if it can, where `auto` found a GPU that cannot do what is asked."""
        chosen = self.accelerator
        try:
            self._check_computing()
            self._check_batch_invariant()
        except ImpossibleSetting as error:
            if not chosen_gpu(chosen):
                raise
            object.__setattr__(self, "accelerator", Automatic("none", str(error)))
            try:
                self._check_device()
            except ImpossibleSetting:
                raise error from None

    def _check_computing(self) -> None:
        """Check which kernels and precisions the machine can compute experts with."""
        able = self.capabilities
        if self.kernel not in able.kernels:
            raise UnknownName("kernel", self.kernel, able.kernels)
        if self.expert_dtype not in ("auto", *able.expert_dtypes):
            raise UnknownName("expert dtype", self.expert_dtype, ("auto", *able.expert_dtypes))
        native = self.native_kernels
        if self.dense_dtype == "auto":
            return
        precision = DensePrecision.of(self.dense_dtype)
        if able.moves and not precision.quantizes and self.dtype not in ("auto", "bf16"):
            raise ImpossibleSetting(
                f"dense dtype bf16 with dtype {self.dtype}: beside an accelerator, what is not in "
                "integers is in --dtype. Use --dtype bf16, or leave --dense-dtype out"
            )
        if not native and not able.moves:
            raise ImpossibleSetting(
                f"dense dtype {self.dense_dtype!r} needs the native CPU kernels, and PyTorch "
                "computes here (see `moesaic doctor`): leave it out, or add an accelerator"
            )

    def _check_numbers(self) -> None:
        for name in (*_WHOLE, *_REAL):
            value = getattr(self, name)
            if value is None and name in _MAY_BE_NONE:
                continue
            kind, words = (Integral, "a whole number") if name in _WHOLE else (Real, "a number")
            if isinstance(value, bool) or not isinstance(value, kind):
                raise ImpossibleSetting(f"{name} is {value!r}; it must be {words}")
            if name in _WHOLE and value < 1:
                raise ImpossibleSetting(f"{name} is {value}; it must be at least 1")

        if not isinstance(self.prefix_cache, bool):
            raise ImpossibleSetting(
                f"prefix_cache is {self.prefix_cache!r}; it is either true or false"
            )

    def _check_threads(self) -> None:
        if self.threads is None:
            return
        cores = self.cores
        limit = _THREADS_PER_CORE * cores
        if self.threads > limit:
            there = "1 core" if cores == 1 else f"{cores} cores"
            raise ImpossibleSetting(
                f"threads is {self.threads}; this process may use {there}, and more than {limit} "
                f"threads would only wait for each other: use {limit} or fewer, or leave it out"
            )

    def _check_batch_invariant(self) -> None:
        if not isinstance(self.batch_invariant, bool):
            raise ImpossibleSetting(
                f"batch_invariant is {self.batch_invariant!r}; it must be True or False"
            )
        if self.batch_invariant and self.capabilities.moves:
            raise ImpossibleSetting(
                f"batch_invariant was asked for with accelerator {self.accelerator!r}: which "
                "device computes an expert, and so how it is rounded, depends on what other "
                "requests used. Leave out the accelerator, or batch_invariant"
            )

    def _check_memory(self) -> None:
        if self.cache_ratio is not None and not 0.0 <= self.cache_ratio <= 1.0:
            raise ImpossibleSetting(
                f"cache ratio is {self.cache_ratio}; it is the share of all routed experts kept in "
                "the accelerator and must lie between 0 and 1"
            )
        for name in ("link_gb_s", "gpu_memory_gb", "max_stall_ms"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ImpossibleSetting(f"{name} is {value}; it must be above 0")
        if self.gpu_memory_gb == inf:
            raise ImpossibleSetting("gpu_memory_gb is inf; leave it out where there is no limit")
        if not self.link_latency_us >= 0:
            raise ImpossibleSetting(
                f"link_latency_us is {self.link_latency_us}; it cannot be negative"
            )
        self._check_host_memory()
        if self.placement is not None and not self.capabilities.moves:
            raise ImpossibleSetting(
                f"placement {str(self.placement)!r} says which experts an accelerator holds at "
                f"first, but there is none{self._why_none()}: leave it out, or add --accelerator "
                "emulated (or cuda)"
            )
        asked = self.cache_ratio or self.gpu_memory_gb
        if asked and not self.capabilities.moves:
            raise ImpossibleSetting(
                "a cache ratio or accelerator memory was given, but there is no accelerator"
                f"{self._why_none()}: leave it out, or add --accelerator emulated (or cuda)"
            )

    def _check_host_memory(self) -> None:
        asked = self.kv_host_gb
        if not 0 <= asked < inf:
            raise ImpossibleSetting(f"kv_host_gb is {asked}; it must be 0 or above, in 10^9 bytes")
        if asked and not self.prefix_cache:
            raise ImpossibleSetting(
                f"{asked:g} GB of main memory were asked for prefixes (kv_host_gb), but "
                "prefix_cache is off, and none are kept: leave out one of the two"
            )
        if asked and not self.capabilities.moves:
            raise ImpossibleSetting(
                f"{asked:g} GB of main memory were asked for prefixes that an accelerator has no "
                f"room for (kv_host_gb), but there is none{self._why_none()}, and the KV cache "
                "lies in main memory: use kv_tokens, or add --accelerator emulated (or cuda)"
            )

    def _why_none(self) -> str:
        chosen = self.accelerator
        return f" ({chosen.reason})" if isinstance(chosen, Automatic) else ""
