"""The native conductor as Python starts it: a brain, a mailbox, experts in host memory, slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from moesaic.core.native_brain import NativeBrain
from moesaic.kernels.gpu.table import TableShape
from moesaic.machines.captured import _conductor
from moesaic.machines.captured.mailbox import Mailbox
from moesaic.machines.captured.step_wants import StepWants
from moesaic.machines.real.stream_copier import BACKGROUND_COPIES

if TYPE_CHECKING:
    import torch

WATCHDOG_NS = 10_000_000_000
AHEAD_NS = 20_000_000
_PLACES = (
    "experts", "blocks_at", "fills_at", "waits_at", "firsts_at", "rows_at", "shares_at"
)  # fmt: skip


class LayerTimes(NamedTuple):
    """Times of one layer, by the steady clock in nanoseconds: when its routing was seen, its plan
    published, the CPU's experts submitted, background copies chosen, the CPU's sum ready."""

    routed: int
    planned: int
    submitted: int
    looked_ahead: int
    summed: int
    on_gpu: int
    on_cpu: int
    transfers: int
    background: int
    hits: int
    publishing: int  # right before the plan was
    cpu_begun: int  # 0: no experts
    cpu_ended: int
    summing: int  # right before the GPU was signalled that the CPU's sum is ready


class LayerWork(NamedTuple):
    """Which experts a layer's devices computed, with how many pairs each."""

    gpu: list[int]  # in the order of the table
    gpu_pairs: list[int]
    in_place: list[int]  # of those, what kernels read from host memory
    cpu: list[int]
    cpu_pairs: list[int]
    there: int  # of the GPU's, those in front of the first that may have to arrive


class CopyTimes(NamedTuple):
    """A copy to the GPU, by the steady clock: it ended between `unseen` and `seen`."""

    which: int  # layer * experts + expert
    background: bool
    submitted: int
    unseen: int
    seen: int


class Decision(NamedTuple):
    """What the brain saw of a layer and what it answered, as words of its state."""

    resident: list[int]  # [layers * experts]
    held: list[int]  # [layers]
    flights: list[int]  # layer, expert, nanoseconds until it arrives
    plan: list[int]
    background: list[int]
    occupied: int
    link_busy_ns: int
    report_start_ns: int
    report_end_ns: int
    hits: int
    report_cpu_ns: int = 0


class CpuExperts(NamedTuple):
    """Addresses of C functions (`moesaic_submit`, `moesaic_wait` and so on) and of the runner they
    are given."""

    runner: int
    submit: int
    wait: int
    error: int
    read_ahead: int = 0  # 0: caches are left alone
    read_some: int = 0


class Copying(NamedTuple):
    """What performs copies: a stream of a CUDA context, which also writes a flag in the GPU's
    memory (its address), or, without one, a thread that takes so long for each."""

    context: int = 0
    stream: int = 0
    device_flag: int = 0
    host_copy_ns: int = 0


@dataclass(frozen=True, slots=True)
class ExpertMemory:
    """Blocks of all experts in host memory, and slots in GPU memory. `owners` of that memory are
    kept until the conductor has closed: a copy may be under way as long as it lives."""

    store: int  # address of [layers, experts] blocks
    slab: int  # address of the first slot
    slots: int
    block_bytes: int
    staging: int = 0  # slots behind these, for what a layer uses once
    owners: tuple[object, ...] = ()


class Limits(NamedTuple):
    """Limits in tokens of a step: from `copy_from` on, experts that are demanded are copied to
    slots before the GPU computes them, where kernels of shorter steps read them in place; steps of
    more than `look_ahead_to` do not look ahead. Where experts are copied, up to `stream_ahead` of
    the next layer's follow, so that the link does not idle between two layers. `background_copies`
    are under way at once: what has not begun when the next layer is routed is dropped, and does not
    stand in the way of what that layer demands."""

    copy_from: int = 1 << 30
    look_ahead_to: int = 1 << 30
    stream_ahead: int = 0
    background_copies: int = BACKGROUND_COPIES


_NONE = Limits()


class ForecastSource(NamedTuple):
    """What the mailbox says of later layers in a step: of so many, by the GPU on the way, or
    filled in before (`recorded`). Of none: the brain predicts them."""

    layers: int = 0
    recorded: bool = False


_NO_FORECASTS = ForecastSource()


class Conductor:
    """Conducts the decode steps of one brain."""

    def __init__(
        self,
        brain: NativeBrain,
        mailbox: Mailbox,
        memory: ExpertMemory,
        cpu: CpuExperts,
        copying: Copying,
        watchdog_ns: int = WATCHDOG_NS,
        core: int = -1,
        records: bool = False,
        limits: Limits = _NONE,
        ahead_ns: int = AHEAD_NS,
    ) -> None:
        """`records`: keep every decision, for deciding it again elsewhere; `ahead_ns`: that a
        launch ahead waits for its step, after the last one."""
        shape = mailbox.shape
        self._kept, self._table = (brain, mailbox, cpu, memory), shape.table
        self._wants: StepWants | None = None
        self._placed: tuple[TableShape | None, dict[str, int]] = None, {}  # of the last step
        sizes = {
            "layers": brain.layers, "experts": shape.experts, "top_k": shape.top_k,
            "ranks": shape.ranks, "hidden": shape.hidden, "hidden_type": 1, "slots": memory.slots,
            "block_bytes": memory.block_bytes, "store": memory.store, "slab": memory.slab,
            "watchdog_ns": watchdog_ns, "ahead_ns": ahead_ns, "core": core, "records": int(records),
            "staging": memory.staging, **limits._asdict(), "forecast_depth": shape.forecasts,
            "forecast_rows": shape.forecast_rows,
        }  # fmt: skip
        functions = {
            "state": brain.state, "decide": brain.decide,
            "look_ahead": brain.look_ahead, "learn": brain.learn,
            "begin_look_ahead": brain.begin_look_ahead,
            "finish_look_ahead": brain.finish_look_ahead,
            "choose_read_ahead": brain.choose_read_ahead,
        }  # fmt: skip
        self._native = _conductor.Conductor(
            sizes, functions,
            mailbox.addresses(), cpu._asdict(), mailbox["arrived"].data_ptr(),
            copying.context, copying.stream, copying.device_flag, copying.host_copy_ns,
        )  # fmt: skip

    def place(self, indices: list[int]) -> list[int]:
        """Slots for experts (`layer * experts + expert`) before the first step; copying them there
        is the caller's."""
        return self._native.place(indices)

    def slots(self) -> list[int]:
        """The slot by expert, or -1, once everything under way has arrived; call it when the GPU is
        idle."""
        return self._native.slots()

    def load_slots(self, slots: list[int]) -> None:
        """The same, as another machine has arranged them since."""
        self._native.load_slots(slots)

    def begin(
        self,
        step: int,
        tokens: int,
        table: TableShape | None = None,
        forecast_source: ForecastSource = _NO_FORECASTS,
        wants: StepWants | None = None,
        is_long: bool = False,
    ) -> None:
        """Expect a step; launch it afterwards, unless a launch was claimed. `table` is what its
        kernels read; the mailbox's, unless given. `wants`: tokens may run again. `is_long`: hidden
        states have a flag of their own, and the CPU's sum is bf16."""
        shape = self._table if table is None else table
        if shape is not self._placed[0]:
            self._placed = shape, {name: getattr(shape, name) for name in _PLACES}
        places = self._placed[1]
        settings = {} if wants is None else wants.settings()
        self._native.begin(step, tokens, places, *forecast_source, is_long, settings)
        self._wants = wants  # its arrays are needed until the next step begins

    def release(self) -> None:
        """The next launch goes through without waiting and computes no experts."""
        self._native.release()

    def expect(self, active: torch.Tensor) -> None:
        """The next step is launched already and waits for `begin`; it reads from `active` (in host
        memory) how many of its tokens are real. It is not written until it is claimed: a
        launch that waits too long goes through with none."""
        self._active = active  # written there as long as this conducts
        self._native.expect(active.data_ptr())

    def claim(self) -> bool:
        """Whether a launch still waits; if so, until a step begins, for as long as the watchdog
        allows. If not, synchronise first."""
        return self._native.claim()

    def let_through(self) -> bool:
        """A launch that waits, claimed or not, goes through without effect, when a step under way
        has ended; whether there was one."""
        return self._native.let_through()

    def finish(self) -> None:
        """Wait until all layers are conducted; raises what went wrong."""
        self._native.finish()
        if self._wants is not None:
            self._wants.hand_over(self._native.right_wants, self._native.judged_wants)

    def close(self) -> None:
        """Its thread ends, whatever still refers to this; a launch that waits goes through."""
        self.__dict__.pop("_native", None)

    def __del__(self) -> None:
        self.close()  # before the memory that its thread writes to is gone

    @property
    def times(self) -> list[LayerTimes]:
        """The times of the last step that was finished, also while the next one is under way."""
        return [LayerTimes(*each) for each in self._native.times()]

    @property
    def work(self) -> list[LayerWork]:
        """The work of the last step."""
        return [LayerWork(*each) for each in self._native.work()]

    def take_copies(self) -> list[CopyTimes]:
        """Those that have ended since the last call, in order; between steps."""
        return [CopyTimes(*each) for each in self._native.take_copies()]

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of all steps, where they are recorded."""
        return [Decision(*each) for each in self._native.decisions()]

    @property
    def forecast_counts(self) -> tuple[int, int]:
        """Layers whose forecasts the brain was given since the beginning, and layers in which they
        came too late."""
        return self._native.forecasts_in_time, self._native.forecasts_late

    @property
    def read_ahead_counts(self) -> tuple[int, int]:
        """Experts that the CPU was given in steps of one token since the beginning, and how many
        of those its workers had been asked to bring into their caches."""
        return self._native.cpu_experts, self._native.experts_read_ahead

    @property
    def bytes_moved(self) -> int:
        return self._native.bytes_moved
