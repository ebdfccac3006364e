"""Decode steps as one native call: tokens in, logits and routing out, no PyTorch in between."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.routing import UNUSED, LayerRouting
from moesaic.kernels import _native
from moesaic.kernels.instruction_sets import ISA_NUMBERS
from moesaic.kernels.native import NativeKernel
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.real_machine import DecodedTokens, Replay
from moesaic.machines.real.routing_adapter import ranked_experts
from moesaic.machines.real.step_description import describe
from moesaic.models.decoder import Decoder
from moesaic.models.kv_cache import ContiguousCache
from moesaic.models.router import Choice

MAX_TOKENS = _native.max_step_tokens
_NO_SCORES = np.empty((0, 0), dtype=np.float32)


class LayerTimes(NamedTuple):
    """When a routed layer's router began, and its experts began and ended, in ns."""

    routing: int
    computing: int
    ended: int


class Forced(NamedTuple):
    """Experts and weights [layers, tokens, top-k]."""

    experts: NDArray[np.int64]
    weights: NDArray[np.float32]


class StepResult:
    """Arrays of one step; results of the next step are others."""

    def __init__(self, decoder: Decoder, tokens: int) -> None:
        spec = decoder.architecture.spec
        rows = (spec.num_moe_layers, tokens)
        self.logits = torch.empty((tokens, spec.vocab_size), dtype=decoder.dtype)
        self.ids = torch.empty((*rows, spec.top_k), dtype=torch.int64)
        self.weights = torch.empty((*rows, spec.top_k))
        self.scores = torch.empty((*rows, spec.num_experts))
        self.preference = torch.empty((*rows, spec.num_experts))
        self._times = torch.zeros((spec.num_moe_layers, 3), dtype=torch.int64)
        self.phase_times: torch.Tensor | None = None  # [phases, 2] ns, where they were asked for
        self.counts: torch.Tensor | None = None

    def write_addresses(self, call: _native.StepCall) -> None:
        call.logits, call.ids = self.logits.data_ptr(), self.ids.data_ptr()
        call.weights, call.times = self.weights.data_ptr(), self._times.data_ptr()
        call.scores, call.selection_scores = self.scores.data_ptr(), self.preference.data_ptr()

    @property
    def times(self) -> list[LayerTimes]:
        return [LayerTimes(*row) for row in self._times.tolist()]

    def active(self) -> list[int]:
        """Experts with tokens, of every routed layer."""
        return [len(set(layer) - {UNUSED}) for layer in self.ids.flatten(1).tolist()]

    def routing(self, layer: int, ranks: int, step: int) -> LayerRouting:
        """As the routing adapter makes it of a router's output."""
        experts, weights = self.ids[layer].numpy(), self.weights[layer].numpy()
        counts = None if self.counts is None else self.counts.numpy()
        if ranks == 0:
            return LayerRouting(layer, experts, _NO_SCORES, experts, _NO_SCORES, (), counts, step)
        choice = Choice(
            self.ids[layer], self.weights[layer], self.scores[layer], self.preference[layer],
            self.counts,
        )  # fmt: skip
        ranked, scores = ranked_experts(choice, ranks)
        return LayerRouting(
            layer, experts, weights, ranked.numpy(), scores.numpy(), (), counts, step
        )


class NativeStep:
    """One network on one cache. `pool` are the workers, which compute experts, too."""

    def __init__(
        self, decoder: Decoder, store: ExpertStore, cache: ContiguousCache, pool: _native.Pool
    ) -> None:
        assert isinstance(store.kernel, NativeKernel), "checked by `why_not`"
        self._kept = (decoder, store, cache)  # the step has their addresses
        self._decoder, self._cache = decoder, cache
        self._step = _native.DecodeStep(
            pool, ISA_NUMBERS[store.kernel.isa], describe(decoder, store)
        )
        self._memory = _native.StepCache()
        self._memory.first, self._memory.second = cache.first.data_ptr(), cache.second.data_ptr()
        self._memory.slots, self._memory.length = cache.slots, cache.max_length

    def takes(self, tokens: DecodedTokens) -> bool:
        return len(tokens.numbers) <= MAX_TOKENS and max(tokens.positions) < self._cache.max_length

    def run(
        self,
        tokens: DecodedTokens,
        counts: torch.Tensor | None = None,
        forced: Forced | None = None,
        timed: bool = False,
    ) -> StepResult:
        """One step; the cache's lengths are the caller's to advance. `counts` [tokens]: how many
        experts each token uses; `timed`: also note when every phase began."""
        result = StepResult(self._decoder, len(tokens.numbers))
        inputs = np.array(tokens, dtype=np.int64)
        call = _native.StepCall()
        call.tokens = len(tokens.numbers)
        call.numbers, call.slots, call.positions = (row.ctypes.data for row in inputs)
        if counts is not None:
            if counts.dtype != torch.int64 or counts.shape != (call.tokens,):
                raise ValueError("a step has one count of experts (int64) for every token")
            result.counts = counts = counts.contiguous()
            call.counts = counts.data_ptr()
        if forced is not None:
            _check_forced(forced, tuple(result.ids.shape))
            call.forced_ids, call.forced_weights = (part.ctypes.data for part in forced)
        if timed:
            layers = len(self._decoder.layers)
            phases = layers * len(_native.step_phases) + 2
            result.phase_times = torch.zeros((phases, 2), dtype=torch.int64)
            call.phase_times = result.phase_times.data_ptr()
        result.write_addresses(call)
        self._step.run(self._memory, call)
        return result

    def forced(self, replay: Replay) -> Forced:
        """The routing of a whole step, to be used instead of the routers'."""
        layers = range(self._decoder.architecture.spec.num_moe_layers)
        routings = [replay(layer) for layer in layers]
        return Forced(
            np.ascontiguousarray([each.experts for each in routings], dtype=np.int64),
            np.ascontiguousarray([each.weights for each in routings], dtype=np.float32),
        )


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
