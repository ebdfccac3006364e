"""What a body can do, as a value: callers check it instead of which body it is."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.dtypes import BITS_PER_WEIGHT

_STAGED_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class Capabilities:
    devices: tuple[str, ...]  # that compute routed experts
    moves: bool  # experts have slots in a memory of their own, and a link brings them there
    prefetch: bool  # moves that were chosen ahead begin in idle link time
    true_gates: bool  # it can forecast what the gates of later layers say already
    dense_follows: bool  # attention and shared experts can be computed where a layer's experts are
    virtual_time: bool = False  # a step takes the time it says, not the time it takes
    timeline: bool = True  # every piece of work can be recorded as a span
    kernels: tuple[str, ...] = ()  # to choose from; none: nothing is computed
    expert_dtypes: tuple[str, ...] = tuple(BITS_PER_WEIGHT)  # precisions of routed experts
    staging: int = 0  # slots beside those of the cache, for experts used once, at most
    step_tokens: int = 512  # of one step, unless asked otherwise
    own_memory: bool = False  # slots and network are in a memory that is not the host's

    def staging_slots(self, experts: int, block_bytes: int) -> int:
        """The slots for layers of so many experts of this size: no more than a layer has, and where
        experts are large, two."""
        return min(self.staging, experts, max(_STAGED_BYTES // block_bytes, 2))

    def __post_init__(self) -> None:
        assert self.moves or not self.prefetch, "what is prefetched must be moved"
