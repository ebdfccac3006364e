"""Steps as CUDA graphs, one for every size that comes, met by the native conductor: decoded tokens,
and several tokens of a sequence at once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from time import perf_counter_ns
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from moesaic.core.errors import EngineFailed
from moesaic.core.native_brain import NativeBrain
from moesaic.core.rerun_decider import RerunDecider
from moesaic.kernels.gpu.driver import current_context
from moesaic.kernels.gpu.table import FLAG
from moesaic.kernels.native import NativeKernel
from moesaic.machines.accelerators import LARGEST_BATCH, LARGEST_PROMPT, SMALLEST_PROMPT
from moesaic.machines.captured.captured_step import CapturedStep
from moesaic.machines.captured.conductor import (
    Conductor,
    Copying,
    ExpertMemory,
    ForecastSource,
    LayerTimes,
    Limits,
)
from moesaic.machines.captured.copied_rows import copied
from moesaic.machines.captured.cpu_runner import CpuRunner
from moesaic.machines.captured.decode_step import LONG_STEP, DecodeStep
from moesaic.machines.captured.launch_ahead import LaunchAhead
from moesaic.machines.captured.mailbox import Mailbox, MailboxShape
from moesaic.machines.captured.prompt_step import PromptStep
from moesaic.machines.captured.recorded_forecasts import write_recorded
from moesaic.machines.captured.replayed_ranks import ranked_to
from moesaic.machines.captured.step_ending import Ending
from moesaic.machines.captured.step_kinds import (
    Captured,
    DecodeKind,
    DecodingStep,
    StepKind,
    StepType,
)
from moesaic.machines.captured.step_parts import Replayed, StepParts
from moesaic.machines.captured.step_wants import StepWants
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import ForwardPass, Replay, RowSampling
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder
from moesaic.models.experts.gate_bank import GateBank

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, LARGEST_BATCH)  # with a graph
PROMPTS = (  # rows
    *(SMALLEST_PROMPT, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, LARGEST_PROMPT),
)
_STREAM_AHEAD = 12  # experts
_LEAST_LOOK_AHEAD = 16  # tokens


class LoadedRouting(NamedTuple):
    """What a step says of later layers; and, where routing is replayed, how many experts each
    token uses, None: all of top-k."""

    source: ForecastSource
    counts: NDArray[np.int64] | None = None


def longest_look_ahead(experts: int, top_k: int) -> int:
    """Tokens of the longest step that looks ahead: from where they want every expert once, on
    average, forecasts say little, and making them of every token takes longer than the layer."""
    return max(experts // top_k, _LEAST_LOOK_AHEAD)


def rows_of_graph(tokens: int) -> int:
    """That a step of so many tokens may have, with those that are not used."""
    return max(sizes[min(bisect_left(sizes, tokens), len(sizes) - 1)] for sizes in (SIZES, PROMPTS))


class GraphMemory(NamedTuple):
    """Experts in host memory and slots in the GPU's, and who computes on the CPU."""

    store: ExpertStore
    slab: torch.Tensor  # [slots and more, block bytes]
    slots: int
    threads: int
    tokens: int  # of the longest step
    buffers: tuple[torch.Tensor, torch.Tensor] | None = None  # for its pairs


class GraphSteps:
    """`ranks` experts per token are reported to the brain; with `gates` it is given what they say
    of later layers. One thread uses it."""

    def __init__(
        self, decoder: Decoder, cache: BlockCache, memory: GraphMemory, brain: NativeBrain,
        ranks: int, gates: GateBank | None = None,
    ) -> None:  # fmt: skip
        spec, store = decoder.architecture.spec, memory.store
        kernel = store.kernel
        assert isinstance(kernel, NativeKernel), "a kernel whose blocks both sides read"
        self.batch = min(cache.slots, SIZES[-1])
        self.rows = min(max(memory.tokens, PROMPTS[0]), PROMPTS[-1])
        most = max(self.batch, self.rows)
        self._lookahead = brain.lookahead
        self.look_ahead_to = longest_look_ahead(spec.num_experts, spec.top_k)
        shape = MailboxShape(
            most, spec.hidden_size, spec.top_k, spec.num_experts, ranks, spec.num_moe_layers,
            self._lookahead, rows_of_graph(self.look_ahead_to),
        )  # fmt: skip
        self._mailbox = Mailbox(shape)
        self._arrived = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._mailbox["table"][FLAG] = self._arrived.data_ptr()
        self._parts = StepParts(
            decoder, cache, self._mailbox, kernel.dtype, memory.buffers, gates=gates
        )
        self._cpu = CpuRunner(kernel.shape, kernel.dtype, memory.threads, kernel.tiles_from)
        self._copies, self._stream = torch.cuda.Stream(), torch.cuda.Stream()
        self._conductor = Conductor(
            brain, self._mailbox,
            ExpertMemory(
                store.block(0, 0).data_ptr(), memory.slab.data_ptr(), memory.slots,
                kernel.block_bytes, len(memory.slab) - memory.slots, (store, memory.slab),
            ),
            self._cpu.addresses(),
            Copying(current_context(), self._copies.cuda_stream, self._arrived.data_ptr()),
            limits=Limits(LONG_STEP, self.look_ahead_to, _STREAM_AHEAD),
        )  # fmt: skip
        self._ahead = LaunchAhead(self._conductor, self._stream)
        self._last: DecodeKind | None = None  # of the last step, if it decoded
        self._under_way: DecodingStep | None = None
        self._decoding: dict[tuple[int, StepKind], Captured[DecodeStep]] = {}
        self._reading: dict[tuple[int, int, StepKind], Captured[PromptStep]] = {}
        self._pool: object = torch.cuda.graph_pool_handle()  # one step runs at a time
        self._layers = spec.num_moe_layers
        self._rounds = decoder.architecture.router.round_weights
        self._grouped = decoder.architecture.router.groups > 1
        self.started_ns = 0  # of the last step

    def begin(self, number: int, work: ForwardPass, decider: RerunDecider | None = None) -> None:
        """A step of decoded tokens, which from here on runs by itself. `decider`: tokens may run
        again."""
        self.abandon()
        assert work.decodes, "one token of every sequence"
        count, ending = len(work.pieces), Ending.of(work.sampling)
        size = self._size(count)
        kind = DecodeKind(size, self._kind(work), ending)
        try:
            captured = self._of_batch(size, kind.kind)
            if ending not in captured.graphs or (work.replay is not None and kind != self._last):
                self._ahead.cancel()  # it would run beside that, or over what is replayed
            graph = self._graph(captured, ending, work.sampling)
            routing = self._load(captured, work.replay, count)
            # Not before: what waits for the GPU up to here waits for a launch that was not claimed,
            # and that does not take long.
            ended = self._ahead.claim(kind)
            captured.step.inputs.write(
                work.numbers, work.slots, work.positions, _counts(work, routing)
            )
            ended = self._begin(number, count, captured.step, graph, routing.source, decider, ended)
        except BaseException:
            self._ahead.cancel()
            raise
        self._under_way = DecodingStep(kind, captured.step, graph, count, ended)

    def is_captured(self, work: ForwardPass) -> bool:
        """Whether such a step of decoded tokens can begin at once."""
        size = self._size(len(work.pieces))
        found = self._decoding.get((size, self._kind(work)))
        return found is not None and Ending.of(work.sampling) in found.graphs

    def _size(self, tokens: int) -> int:
        """The size of the graph that decodes so many tokens."""
        return min(SIZES[bisect_left(SIZES, tokens)], self.batch)

    def finish(self, ahead: bool = True) -> torch.Tensor:
        """The step's logits [tokens, vocabulary], or, where those will do, the next token of each,
        -1 where logits are not finite. `ahead`: another such step is launched meanwhile, if the
        last one was of its kind; not before, since a launch waits for as long as these
        results are not taken."""
        step, self._under_way = self._under_way, None
        assert step is not None, "a step was begun"
        try:
            try:
                # A long step has copies in its graph: in front of those that wait no other begins.
                if ahead and step.kind == self._last and not step.step.is_long:
                    with torch.cuda.stream(self._stream):
                        active = step.step.inputs.host_active
                        self._ahead.launch_next(step.kind, step.graph, active, step.ended)
            finally:
                self._conduct()
            self._await_end(step.ended)
            output = copied(step.step.output(step.kind.ending)[: step.tokens])
        except BaseException:
            self._ahead.cancel()
            raise
        self._ahead.expect_it()
        self._last = step.kind
        return output

    def read(
        self, number: int, work: ForwardPass, decider: RerunDecider | None = None
    ) -> torch.Tensor:
        """One step in which sequences bring several tokens: pieces of prompts, drafts to be
        checked. The same of the wanted rows."""
        ending = Ending.of(work.sampling)
        self.abandon()
        self._ahead.cancel()
        self._last = None
        count, wanted = len(work.numbers), len(work.wanted)
        rows = min(PROMPTS[bisect_left(PROMPTS, count)], self.rows)
        space = SIZES[bisect_left(SIZES, wanted)]
        captured = self._of_prompts(rows, space, self._kind(work))
        graph = self._graph(captured, ending, work.sampling)
        routing = self._load(captured, work.replay, count)
        captured.step.write(work, _counts(work, routing))
        ended = self._begin(number, count, captured.step, graph, routing.source, decider)
        self._conduct()
        self._await_end(ended)
        return copied(captured.step.output(ending)[:wanted])

    def abandon(self) -> None:
        """Ends a step whose caller was interrupted before it collected the results."""
        if self._under_way is not None:
            self._ahead.cancel()
            self._under_way = None

    def _kind(self, work: ForwardPass) -> StepKind:
        replays = work.replay is not None
        return StepKind(replays, work.counts is not None and self._grouped and not replays)

    def can_read(self, work: ForwardPass) -> bool:
        return len(work.numbers) <= self.rows and len(work.wanted) <= SIZES[-1]

    def _begin(
        self, number: int, count: int, step: DecodeStep, graph: torch.cuda.CUDAGraph,
        forecast_source: ForecastSource, decider: RerunDecider | None,
        ended: torch.cuda.Event | None = None,
    ) -> torch.cuda.Event:  # fmt: skip
        """Starts the conductor and, unless it was launched before, the graph. Returns the event at
        the end of the graph; of a graph that was launched before, this is `ended`."""
        self.started_ns = perf_counter_ns()  # what is replayed is there
        top_k = self._mailbox.shape.top_k
        wants = None if decider is None else StepWants(decider, self._layers, count, top_k)
        if ended is None:
            self._stream.wait_stream(torch.cuda.current_stream())
        else:
            torch.cuda.current_stream().synchronize()
        try:
            self._conductor.begin(
                number, count, step.table_shape, forecast_source, wants, step.is_long
            )
            if ended is None:
                with torch.cuda.stream(self._stream):
                    ended = self._ahead.launch(graph)
        except BaseException:
            self._conduct()
            raise
        return ended

    def _await_end(self, ended: torch.cuda.Event) -> None:
        """Wait for the end of a conducted step: only the head is left, which is not worth
        sleeping."""
        ended.synchronize()
        self._parts.stamps.keep()

    def _graph(
        self, captured: Captured[StepType], ending: Ending, sampling: Sequence[RowSampling] | None
    ) -> torch.cuda.CUDAGraph:
        """Before the step's other inputs are written."""
        if ending not in captured.graphs:
            captured.graphs[ending] = self._capture(captured.step, ending)
        if ending is Ending.SAMPLED and sampling is not None:
            captured.step.write_sampling(sampling)
        return captured.graphs[ending]

    def _capture(self, step: DecodeStep, ending: Ending) -> torch.cuda.CUDAGraph:
        """After a run without a conductor, over rows that are not active: libraries load kernels
        and take memory on first use, and wait for the GPU when they do. A GPU that waits for the
        conductor would wait for ever: the conductor's copies need the same lock."""
        step.inputs.host.zero_()
        step.prepare(ending)
        self._conductor.release()
        self._stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(self._stream):
                step.launch(ending)
        finally:
            self._stream.synchronize()  # while the flags are not put back
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            step.launch(ending)
        return graph

    def _conduct(self) -> None:
        try:
            self._conductor.finish()
        except RuntimeError as error:
            self._ahead.cancel()
            torch.cuda.synchronize()
            raise EngineFailed(
                f"a decode step failed between GPU and CPU: {error}. Load the model again"
            ) from error

    @property
    def times(self) -> list[LayerTimes]:
        return self._conductor.times

    def ended_ns(self, times: Sequence[LayerTimes]) -> int:
        """When the GPU had done the last step, which has these times, by the host's clock: the
        conductor sees the last layer's routing a microsecond after the GPU has left it."""
        return times[-1].routed + self._parts.stamps.from_routing_to_end(self._layers - 1)

    def busy_ns(self, times: Sequence[LayerTimes]) -> int:
        """How long the GPU worked in the last step, which has these times."""
        return self._parts.stamps.busy_ns([each.on_gpu > 0 for each in times])

    def trace(self, ended_ns: int, tokens: int) -> CapturedStep:
        """The last step, and the copies that have ended since one was asked for."""
        conductor, stamps = self._conductor, self._parts.stamps.read()
        copies = conductor.take_copies()
        return CapturedStep(
            self.started_ns, ended_ns, tokens, stamps, conductor.times, conductor.work, copies
        )

    def forget_copies(self) -> None:
        """Discard copy records of steps without a recorded timeline."""
        self._conductor.take_copies()

    @property
    def bytes_moved(self) -> int:
        return self._conductor.bytes_moved

    def slots(self) -> list[int]:
        self._ahead.cancel()
        return self._conductor.slots()

    def load_slots(self, slots: list[int]) -> None:
        self._ahead.cancel()
        self._conductor.load_slots(slots)

    def _of_batch(self, size: int, kind: StepKind) -> Captured[DecodeStep]:
        if (size, kind) not in self._decoding:
            given = self._space(size, kind.replays)
            step = DecodeStep(self._parts, size, given, gated=kind.gated)
            self._decoding[size, kind] = Captured(step, given)
        return self._decoding[size, kind]

    def _of_prompts(self, rows: int, wanted: int, kind: StepKind) -> Captured[PromptStep]:
        key = rows, wanted, kind
        if key not in self._reading:
            given = self._space(rows, kind.replays)
            step = PromptStep(self._parts, rows, wanted, given, kind.gated)
            self._reading[key] = Captured(step, given)
        return self._reading[key]

    def _space(self, rows: int, replays: bool) -> Replayed | None:
        shape = self._mailbox.shape
        return Replayed.space(self._layers, rows, shape.ranks, shape.top_k) if replays else None

    def _load(
        self, captured: Captured[StepType], replay: Replay | None, count: int
    ) -> LoadedRouting:
        """Copy the routing of a whole step to the GPU."""
        if replay is None:
            return LoadedRouting(ForecastSource(captured.step.forecasts))
        target = captured.replayed
        assert target is not None, "a step that replays"
        routings = [replay(layer) for layer in range(self._layers)]
        ranks = target.ranked.shape[2]
        found = [ranked_to(ranks, self._mailbox.shape.experts, each) for each in routings]
        arrays = (
            np.stack([ranked for ranked, _ in found]),
            np.stack([scores for _, scores in found]),
            np.stack([each.weights for each in routings]),
        )
        ranked, scores, weights = (torch.from_numpy(values) for values in arrays)
        if self._rounds:
            weights = weights.bfloat16().float()
        for part, values in zip(target, (ranked, scores, weights), strict=True):
            part[:, :count].copy_(values)
        depth = self._lookahead if count <= self._mailbox.shape.forecast_rows else 0
        return LoadedRouting(write_recorded(self._mailbox, routings, depth), routings[0].counts)

    def close(self) -> None:
        """The conductor's thread ends before the workers it would ask, whatever the GPU says."""
        try:
            self._ahead.cancel()
        finally:
            self._conductor.close()
            self._decoding.clear()
            self._reading.clear()
            self._cpu.close()


def _counts(work: ForwardPass, routing: LoadedRouting) -> list[int] | None:
    counts = routing.counts if work.counts is None else work.counts
    return None if counts is None else counts.tolist()
