"""The memory plan of a model with given slots and sequence length, part by part, and whether it
fits: plain arithmetic, no choices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from moesaic.core.units import GB
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.memory.sizes import Sizes
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of

SPARE = 0.05  # of main memory: for Python, torch and other processes
CHECKPOINTS, MOST_CHECKPOINT_BYTES = 32, 2 * 10**9
CONTEXT = 10**9  # bytes of a GPU's memory: CUDA's context, libraries, and what allocation wastes


class MemoryPart(NamedTuple):
    name: str
    detail: str
    bytes: int
    main: bool = True
    accelerator: bool = False


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """An emulated accelerator's memory is main memory, and counts in both; a GPU's is its own."""

    model: str
    dtype: str  # of everything but the routed experts
    expert_dtype: str
    dense_dtype: str  # stored precision of the matrices among the rest
    parts: tuple[MemoryPart, ...]
    capacity: Capacity
    cache_ratio: float  # share of all routed experts that have a slot
    available_bytes: int
    accelerator_limit_bytes: int | None  # None: no limit of its own, or no accelerator

    @property
    def main_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.main)

    @property
    def accelerator_bytes(self) -> int:
        return sum(part.bytes for part in self.parts if part.accelerator)

    @property
    def fits_main(self) -> bool:
        return self.main_bytes <= self.available_bytes

    @property
    def fits_accelerator(self) -> bool:
        limit = self.accelerator_limit_bytes
        return limit is None or self.accelerator_bytes <= limit

    @property
    def fits(self) -> bool:
        return self.fits_main and self.fits_accelerator


class PlanFor(Protocol):
    """The plan for given slots and tokens of all sequences together, whether it fits or not."""

    def __call__(self, slots: int, tokens: int) -> MemoryPlan: ...


def make_plan(
    sizes: Sizes,
    settings: EngineSettings,
    available: int,
    accelerator_free: int | None,
    needs_gate_bank: bool,
    longest: int,
    slots: int,
    tokens: int,
) -> MemoryPlan:
    """`tokens` of all sequences together, each of which has up to `longest`."""
    spec, able = sizes.spec, settings.capabilities
    length, blocks = min(tokens, longest), blocks_of(tokens)
    # What belongs to attention and router.
    network = partial(MemoryPart, main=not able.own_memory, accelerator=able.moves)
    sequences = "1 sequence" if sizes.sequences == 1 else f"{sizes.sequences} sequences"
    kept = f"{sequences}{_kept(sizes, length, blocks)}"
    kept += ", prefix cache included" if settings.prefix_cache else ""
    step = f"a step of at most {sizes.step_tokens} tokens"
    parts = [
        MemoryPart(
            "routed experts", f"{spec.num_expert_blocks} in {sizes.expert_dtype}", sizes.store
        ),
        network("dense weights", str(sizes.packed or sizes.dtype), sizes.dense),
        network("KV cache", kept, sizes.kv_cache(length, KV_BLOCK * blocks)),
    ]
    saved = checkpoint_bytes(sizes, settings)
    if saved:
        detail = f"{saved // sizes.checkpoint} of windows and states in kept prefixes"
        parts.append(MemoryPart("checkpoints", detail, saved))
    copies = kv_copies(sizes, settings)
    if copies:
        detail = f"{KV_BLOCK * copies} tokens of kept prefixes"
        parts.append(MemoryPart("KV cache in main memory", detail, copies * sizes.kv_block))
    if spec.linear_attention is not None:
        detail = f"{sequences}, {len(spec.linear_layers)} of {spec.num_layers} layers"
        parts.append(network("recurrent state", detail, sizes.states))
    if able.own_memory:
        parts += [
            network("workspace", step, sizes.device_workspace(length)),
            network("graphs", "captured steps of all sizes", sizes.graphs(length)),
            network("CUDA context", "with libraries and what allocation wastes", CONTEXT),
            MemoryPart(
                "host workspace",
                "the CPU's experts, copies, sampling",
                sizes.host_workspace(length),
            ),
        ]
    else:
        parts.append(network("workspace", step, sizes.workspace(length)))
    if able.moves:
        staging = able.staging_slots(spec.num_experts, sizes.block)
        detail = f"{slots} experts and {staging} for staging"
        parts.append(network("slots", detail, (slots + staging) * sizes.block))
    if slots and needs_gate_bank:
        parts.append(network("gate bank", "forecasts of later layers", sizes.gate_bank))
    parts.append(
        MemoryPart("left free", f"{SPARE:.0%}, for everything else", round(SPARE * available))
    )
    return MemoryPlan(
        model=spec.name,
        dtype=sizes.dtype,
        expert_dtype=sizes.expert_dtype,
        dense_dtype=str(sizes.packed or sizes.dtype),
        parts=tuple(parts),
        capacity=Capacity(slots, sizes.sequences, length, blocks, copies),
        cache_ratio=slots / spec.num_expert_blocks,
        available_bytes=available,
        accelerator_limit_bytes=accelerator_limit(settings, accelerator_free),
    )


def checkpoint_bytes(sizes: Sizes, settings: EngineSettings) -> int:
    """What all that are kept may take: no prefix in main memory is of use without."""
    if not settings.keeps_checkpoints:
        return 0
    least = min(CHECKPOINTS * sizes.checkpoint, MOST_CHECKPOINT_BYTES)
    return max(least, _checkpoint_share(sizes, settings))


def kv_copies(sizes: Sizes, settings: EngineSettings) -> int:
    """How many blocks main memory has for prefixes that a GPU's KV cache has no room for."""
    if not settings.kv_host_gb or not sizes.kv_block:
        return 0
    left = round(settings.kv_host_gb * GB) - _checkpoint_share(sizes, settings)
    return left // sizes.kv_block


def _checkpoint_share(sizes: Sizes, settings: EngineSettings) -> int:
    """A quarter of the memory for copies of blocks."""
    return round(settings.kv_host_gb * GB) // 4 if sizes.checkpoint else 0


def _kept(sizes: Sizes, length: int, blocks: int) -> str:
    """How many tokens, and how many where layers have a sliding window."""
    tokens = KV_BLOCK * blocks
    share = f" of up to {length} tokens"
    if sizes.sequences * length > tokens:
        share += f", {tokens} together"
    layers, kept = len(sizes.spec.window_layers), sizes.window_rows(length)
    if not layers or kept == length:
        return share
    return f"{share}; {kept} each in {layers} of {sizes.spec.num_layers} layers"


def accelerator_limit(settings: EngineSettings, free: int | None) -> int | None:
    """What an accelerator may use: what was allowed, and no more than there is."""
    allowed = None if settings.gpu_memory_gb is None else round(settings.gpu_memory_gb * GB)
    return min((size for size in (allowed, free) if size is not None), default=None)
