"""Decode steps as one native call: tokens in, logits and routing out, no PyTorch in between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.kernels import _native
from moesaic.kernels.instruction_sets import ISA_NUMBERS
from moesaic.kernels.native import NativeKernel
from moesaic.machines.cpu_step.step_description import describe
from moesaic.machines.cpu_step.step_result import ResultLayout, StepResult
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import ForwardPass, Replay
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder

MAX_TOKENS = _native.max_step_tokens


class Forced(NamedTuple):
    """Experts and weights [layers, tokens, top-k]."""

    experts: NDArray[np.int64]
    weights: NDArray[np.float32]


class NativeStep:
    """One network on one cache, for one thread. `pool` are the workers, which compute experts,
    too."""

    def __init__(
        self, decoder: Decoder, store: ExpertStore, cache: BlockCache, pool: _native.Pool
    ) -> None:
        assert isinstance(store.kernel, NativeKernel), "checked by `why_layerwise`"
        self._kept = (decoder, store, cache)  # the step has their addresses
        self._decoder, self._cache = decoder, cache
        self._step = _native.DecodeStep(
            pool, ISA_NUMBERS[store.kernel.isa], describe(decoder, store)
        )
        self._memory = _native.StepCache()
        self._memory.slots, self._memory.length = cache.slots, cache.max_length
        assert _native.cache_block == KV_BLOCK, "kernels and cache agree about a block"
        self._memory.table, self._memory.blocks = cache.table.ctypes.data, cache.first.shape[1]
        for number in range(len(decoder.layers)):
            self._memory.add_layer(_layer_cache(cache, number))
        self._layouts: dict[int, ResultLayout] = {}  # by number of tokens
        self._inputs = np.zeros((3, MAX_TOKENS), dtype=np.int64)
        self._call = _native.StepCall()  # of every step, made once
        numbers, slots, positions = (row.ctypes.data for row in self._inputs)
        self._call.numbers, self._call.slots, self._call.positions = numbers, slots, positions

    def run(
        self,
        work: ForwardPass,
        counts: torch.Tensor | None = None,
        forced: Forced | None = None,
        timed: bool = False,
    ) -> StepResult:
        """One step; the cache's lengths are the caller's to advance. `counts` [tokens]: how many
        experts each token uses; `timed`: also note when every phase began."""
        count = len(work.pieces)
        if (layout := self._layouts.get(count)) is None:
            layout = self._layouts[count] = ResultLayout(self._decoder, count)
        result = StepResult(layout)
        self._inputs[:, :count] = work.numbers, work.slots, work.positions
        call = self._call
        call.tokens = count
        call.counts = call.forced_ids = call.forced_weights = call.phase_times = 0
        if counts is not None:
            if counts.dtype != torch.int64 or counts.shape != (count,):
                raise ValueError("a step has one count of experts (int64) for every token")
            result.counts = counts = counts.contiguous()
            call.counts = counts.data_ptr()
        if forced is not None:
            _check_forced(forced, layout.ids.shape)
            call.forced_ids, call.forced_weights = (part.ctypes.data for part in forced)
        if timed:
            layers = len(self._decoder.layers)
            phases = layers * len(_native.step_phases) + 2
            result.phase_times = torch.zeros((phases, 2), dtype=torch.int64)
            call.phase_times = result.phase_times.data_ptr()
        result.write_addresses(call)
        self._step.run(self._memory, call)
        return result

    def replay_of(self, work: ForwardPass) -> Replay | None:
        return work.replayed(self._decoder)

    def forced(self, replay: Replay) -> Forced:
        """The routing of a whole step, to be used instead of the routers'."""
        layers = range(self._decoder.architecture.spec.num_moe_layers)
        routings = [replay(layer) for layer in layers]
        return Forced(
            np.ascontiguousarray([each.experts for each in routings], dtype=np.int64),
            np.ascontiguousarray([each.weights for each in routings], dtype=np.float32),
        )


def _layer_cache(cache: BlockCache, number: int) -> _native.StepLayerCache:
    layer = _native.StepLayerCache()
    for to, kept in zip((layer.first, layer.second), cache.kept(number), strict=True):
        if kept.scales is None:
            to.values = kept.values.data_ptr()
        else:
            to.codes, to.scales = kept.values.data_ptr(), kept.scales.data_ptr()
    return layer


def _check_forced(forced: Forced, shape: tuple[int, ...]) -> None:
    """The native call reads as much as the step has, whatever the arrays hold."""
    parts: tuple[tuple[NDArray[np.generic], str], ...] = (
        (forced.experts, "int64"),
        (forced.weights, "float32"),
    )
    for part, dtype in parts:
        if part.shape != shape or part.dtype != dtype or not part.flags.c_contiguous:
            raise ValueError(
                f"a replayed routing is {part.shape} {part.dtype}; this step needs {shape} "
                f"(layers, tokens, top-k) {dtype}, row after row"
            )
