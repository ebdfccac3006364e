"""Decode steps as CUDA graphs, one for every batch size that comes, met by the native conductor."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
import torch

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.native_brain import NativeBrain
from moesaic.kernels.gpu.driver import current_context
from moesaic.kernels.native import NativeKernel
from moesaic.machines.cuda.conductor import Conductor, Copying, ExpertMemory, LayerTimes
from moesaic.machines.cuda.cpu_runner import CpuRunner
from moesaic.machines.cuda.decode_step import DecodeStep
from moesaic.machines.cuda.mailbox import Mailbox, MailboxShape
from moesaic.machines.cuda.step_parts import Replayed, StepParts
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.real_machine import DecodedTokens, Replay
from moesaic.models.decoder import Decoder
from moesaic.models.kv_cache import ContiguousCache

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)  # batches with a graph


@dataclass(slots=True)
class Captured:
    step: DecodeStep
    replayed: Replayed | None
    graph: torch.cuda.CUDAGraph | None = None  # none until the second launch


class GraphMemory(NamedTuple):
    """Experts in host memory and slots in the GPU's, and who computes on the CPU."""

    store: ExpertStore
    slab: torch.Tensor  # [slots and more, block bytes]
    slots: int
    threads: int


class GraphSteps:
    """`ranks` experts per token are reported to the brain. One thread uses it."""

    def __init__(
        self, decoder: Decoder, cache: ContiguousCache, memory: GraphMemory, brain: NativeBrain,
        ranks: int,
    ) -> None:  # fmt: skip
        spec, store = decoder.architecture.spec, memory.store
        kernel = store.kernel
        assert isinstance(kernel, NativeKernel), "a kernel whose blocks both sides read"
        self.batch = min(cache.slots, SIZES[-1])
        shape = MailboxShape(self.batch, spec.hidden_size, spec.top_k, spec.num_experts, ranks)
        self._mailbox = Mailbox(shape)
        self._parts = StepParts(decoder, cache, self._mailbox, kernel.dtype)
        self._cpu = CpuRunner(kernel.shape, kernel.dtype, memory.threads, kernel.tiles_from)
        self._copies, self._stream = torch.cuda.Stream(), torch.cuda.Stream()
        self._conductor = Conductor(
            brain, self._mailbox,
            ExpertMemory(
                store.block(0, 0).data_ptr(), memory.slab.data_ptr(), memory.slots,
                kernel.block_bytes,
            ),
            self._cpu.addresses(), Copying(current_context(), self._copies.cuda_stream),
        )  # fmt: skip
        self._captured: dict[tuple[int, bool], Captured] = {}
        self._layers, self._done = spec.num_moe_layers, torch.cuda.Event(blocking=True)
        self._rounds = decoder.architecture.router.round_weights
        self.started_ns = 0  # of the last step

    def run(self, number: int, tokens: DecodedTokens, replay: Replay | None = None) -> torch.Tensor:
        """One step; its logits [tokens, vocabulary]."""
        count = len(tokens.numbers)
        size = min(SIZES[bisect_left(SIZES, count)], self.batch)
        captured = self._for(size, replay is not None)
        if replay is not None and captured.replayed is not None:
            self._load(captured.replayed, replay, count)
        self.started_ns = perf_counter_ns()  # what is replayed is there
        captured.step.inputs.write(*tokens)
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            launch = self._launcher(captured)
            try:
                self._conductor.begin(number, count, captured.step.table_shape)
                launch()
                self._done.record()
            finally:
                self._conduct()
            self._done.synchronize()
        return captured.step.host_logits[:count].clone()

    def _launcher(self, captured: Captured) -> Callable[[], None]:
        """The first launch runs as it is; before the second, it is captured."""
        if captured.graph is None:
            if not len(captured.step.logits):  # the libraries set themselves up
                return captured.step.launch
            captured.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(captured.graph, stream=self._stream):
                captured.step.launch()
        replay: Callable[[], None] = captured.graph.replay
        return replay

    def _conduct(self) -> None:
        try:
            self._conductor.finish()
        except RuntimeError as error:
            torch.cuda.synchronize()
            raise ImpossibleSetting(
                f"a decode step failed between GPU and CPU: {error}. Load the model again"
            ) from error

    @property
    def times(self) -> list[LayerTimes]:
        return self._conductor.times

    @property
    def bytes_moved(self) -> int:
        return self._conductor.bytes_moved

    def slots(self) -> list[int]:
        return self._conductor.slots()

    def load_slots(self, slots: list[int]) -> None:
        self._conductor.load_slots(slots)

    def _for(self, size: int, replays: bool) -> Captured:
        found = self._captured.get((size, replays))
        if found is None:
            shape = self._mailbox.shape
            given = None
            if replays:
                given = Replayed.space(self._layers, size, shape.ranks, shape.top_k)
            found = Captured(DecodeStep(self._parts, size, given), given)
            found.step.prepare()
            self._captured[size, replays] = found
        return found

    def _load(self, target: Replayed, replay: Replay, count: int) -> None:
        """Copy the routing of a whole step to the GPU."""
        routings = [replay(layer) for layer in range(self._layers)]
        ranks = target.ranked.shape[2]
        arrays = (
            np.stack([each.ranked[:, :ranks] for each in routings]),
            np.stack([each.scores[:, :ranks] for each in routings]),
            np.stack([each.weights for each in routings]),
        )
        ranked, scores, weights = (torch.from_numpy(values) for values in arrays)
        if self._rounds:
            weights = weights.bfloat16().float()
        for part, values in zip(target, (ranked, scores, weights), strict=True):
            part[:, :count].copy_(values)

    def close(self) -> None:
        self._captured.clear()
        del self._conductor
        self._cpu.close()
