"""A GPU that is a Python function: it routes, reads the table, fills slots and remembers, so that
the conductor can be tested without one."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from time import monotonic, perf_counter_ns, sleep
from typing import Any

import numpy as np
import torch

from moesaic.core.routing import Forecast, LayerRouting, cut_columns
from moesaic.kernels.gpu.table import ARRIVING, ON_CPU, TableShape
from moesaic.machines.captured.captured_step import CapturedStep
from moesaic.machines.captured.conductor import (
    AHEAD_NS,
    Conductor,
    Copying,
    CpuExperts,
    ExpertMemory,
    ForecastSource,
    Limits,
)
from moesaic.machines.captured.mailbox import Mailbox, MailboxShape
from moesaic.machines.captured.stamps import LayerStamps, StepStamps
from moesaic.machines.captured.step_wants import StepWants
from moesaic.policies.belief import Belief
from moesaic.policies.brain.c_functions import native_brain
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape

BLOCK = 256  # bytes of an expert
LAYERS, EXPERTS, TOP_K = 3, 8, 2
NO_LIMITS = Limits()
GPU_CLOCK_NS = 7_000_000_000_123  # that the GPU's clock is behind the host's


class Layer(ctypes.Structure):
    """`moesaic_layer` of moesaic_native.h."""

    _fields_ = (
        ("hidden", ctypes.c_void_p), ("hidden_type", ctypes.c_int32),
        ("hidden_stride", ctypes.c_size_t), ("tokens", ctypes.c_int32), ("top_k", ctypes.c_int32),
        ("experts_total", ctypes.c_int32), ("ids", ctypes.c_void_p), ("weights", ctypes.c_void_p),
        ("count", ctypes.c_int32), ("experts", ctypes.POINTER(ctypes.c_int32)),
        ("blocks", ctypes.POINTER(ctypes.c_void_p)), ("out", ctypes.c_void_p),
        ("out_type", ctypes.c_int32), ("add", ctypes.c_int32),
        ("done_flag", ctypes.c_void_p), ("done_value", ctypes.c_uint32),
        ("done_ns", ctypes.c_void_p), ("any_weights", ctypes.c_int32),
    )  # fmt: skip


class PretendedCpu:
    """Notes the experts it is given, with their blocks' first bytes."""

    def __init__(self) -> None:
        self.layers: list[dict[int, bytes]] = []
        self.numbers: list[tuple[list[int], int]] = []  # of experts as given, and how many exist
        self.out_types: list[int] = []
        self.fails = self.fails_ahead = False
        self.read_ahead: list[list[int]] = []  # by call: addresses of blocks
        self.some = 0  # times that the conductor read some of its own part
        self.ends_at: int | None = None  # noted with the flag, as a worker would
        self.flags: list[int] = []
        submit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(Layer))
        wait = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int32)
        text = ctypes.CFUNCTYPE(ctypes.c_void_p)
        blocks = ctypes.POINTER(ctypes.c_void_p)
        ahead = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, blocks, ctypes.c_int32)
        some = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
        self._message = ctypes.create_string_buffer(b"a worker has died")
        self._functions = (
            submit(self._submit), wait(lambda runner, helps: 0),
            text(lambda: ctypes.addressof(self._message)), ahead(self._read_ahead),
            some(self._read_some),
        )  # fmt: skip

    def _submit(self, runner: int, layer: Any) -> int:
        call = layer.contents
        given = {call.experts[i]: call.blocks[i] for i in range(call.count)}
        self.layers.append({e: ctypes.string_at(block, BLOCK) for e, block in given.items()})
        pairs = (ctypes.c_int64 * (call.tokens * call.top_k)).from_address(call.ids)
        self.numbers.append((list(pairs), call.experts_total))
        self.out_types.append(call.out_type)
        if self.ends_at is not None:
            self.flags.append(call.done_value)
            ctypes.c_int64.from_address(call.done_ns).value = self.ends_at
            ctypes.c_uint32.from_address(call.done_flag).value = call.done_value
        return int(self.fails)

    def _read_ahead(self, runner: int, blocks: Any, count: int) -> int:
        self.read_ahead.append([blocks[i] for i in range(count)])
        return int(self.fails_ahead)

    def _read_some(self, runner: int) -> int:
        self.some += 1
        return 0

    def addresses(self) -> CpuExperts:
        cast = [ctypes.cast(f, ctypes.c_void_p).value or 0 for f in self._functions]
        return CpuExperts(0, *cast)


def gpu_time() -> int:
    return perf_counter_ns() - GPU_CLOCK_NS


class Scene:
    """A conductor with everything around it; `tokens` is the batch."""

    def __init__(
        self, policies: PolicySet, slots: int, tokens: int = 1, copy_ns: int = 0,
        watchdog_ns: int = 5_000_000_000, limits: Limits = NO_LIMITS, staging: int = 0,
        forecasts: int = 0, ahead_ns: int = AHEAD_NS, cpu_slowed: int = 0,
        transfer_ns: int = 100_000,
    ) -> None:  # fmt: skip
        """`forecasts`: the GPU says of so many later layers what they will choose. What the brain
        believes: `cpu_slowed` in thousandths, beside copies, and `transfer_ns` of a copy."""
        self.tokens, self.slots = tokens, slots
        shape = Shape(LAYERS, EXPERTS, TOP_K)
        belief = Belief.from_points({1: 10_000}, {1: 60_000}, 5_000, transfer_ns, max(tokens, 2))
        belief = replace(belief, cpu_slowed=cpu_slowed)
        self.composition, self.belief = Composition(policies, shape, slots), belief
        self.brain = self.composition.brain(belief)
        self.routings: list[LayerRouting] = []
        self.forecasts, self.forecasts_come = forecasts, True
        self.forecast: list[tuple[Forecast, ...]] = []  # by layer: what the mailbox said
        box = MailboxShape(tokens, 8, TOP_K, EXPERTS, EXPERTS, LAYERS, forecasts)
        self.mailbox = Mailbox(box, pinned=False)
        self.store = torch.randint(0, 255, (LAYERS * EXPERTS, BLOCK), dtype=torch.uint8)
        self.slab = torch.zeros(slots + staging, BLOCK, dtype=torch.uint8)
        self.cpu = PretendedCpu()
        places, owners = (self.store.data_ptr(), self.slab.data_ptr()), (self.store, self.slab)
        memory = ExpertMemory(*places, slots, BLOCK, staging, owners)
        self.conductor = Conductor(
            native_brain(self.brain, tokens, EXPERTS), self.mailbox, memory,
            self.cpu.addresses(), Copying(host_copy_ns=copy_ns),
            watchdog_ns, records=True, limits=limits, ahead_ns=ahead_ns,
        )  # fmt: skip
        first = [i % LAYERS * EXPERTS + i // LAYERS for i in range(slots)]
        for index, slot in zip(first, self.conductor.place(first), strict=True):
            self.slab[slot] = self.store[index]
        self.on_gpu: list[dict[int, bytes]] = []
        self.shares: list[np.ndarray] = []
        self.waits: list[list[int]] = []  # by layer: tickets, in the table's order
        self.hidden_late_s = 0.0
        self.submitted: list[int] = []  # layers of the CPU when hidden states came, of long steps
        self.arrived: list[int] = []  # and the last copy's ticket
        self.there: list[int] = []  # by layer: experts in front of the first that arrives

    def step(
        self, number: int, chosen: np.ndarray, counts: np.ndarray | None = None,
        wants: StepWants | None = None, is_long: bool = False,
    ) -> None:  # fmt: skip
        """chosen [layers, tokens, top_k]; fewer tokens than the mailbox has space for have a
        table of their own size. Of what a token chooses it uses as many as `counts` says. In a
        long step hidden states come `hidden_late_s` after the plan."""
        self._number, self.tokens, self._counts = number, chosen.shape[1], counts
        self._long = is_long
        self._table = TableShape.of(self.tokens, TOP_K, EXPERTS)
        started, begun = perf_counter_ns(), gpu_time()
        source = ForecastSource(self.forecasts)
        self.conductor.begin(number, self.tokens, self._table, source, wants, is_long)
        stamps = []
        for layer in range(LAYERS):
            self._forecast_later(layer, chosen)
            stamps.append(self._layer(layer, chosen[layer]))
        self.stamps = StepStamps(begun, stamps, gpu_time())
        self.conductor.finish()
        self.started_ns, self.ended_ns = started, perf_counter_ns()

    def _layer(self, layer: int, ids: np.ndarray) -> LayerStamps:
        self._route(layer, ids)
        routed = gpu_time()
        self.mailbox["routed"][0] = layer + 1
        shared = gpu_time()
        self._await("planned", layer + 1)
        planned = gpu_time()
        if self._long:
            sleep(self.hidden_late_s)
            self.submitted.append(len(self.cpu.layers))
            self.arrived.append(int(self.mailbox["arrived"][0]))
            self.mailbox["hidden_ready"][0] = layer + 1
        self.on_gpu.append(self._compute())
        computed = gpu_time()
        self._await("summed", layer + 1)
        return LayerStamps(routed, shared, planned, 0, computed, gpu_time())

    def trace(self) -> CapturedStep:
        """Of the last step."""
        conductor = self.conductor
        copies = conductor.take_copies()
        return CapturedStep(
            self.started_ns, self.ended_ns, self.tokens, self.stamps, conductor.times,
            conductor.work, copies,
        )  # fmt: skip

    def steps(self, chosen: list[np.ndarray]) -> None:
        for each in chosen:
            self.step(self._number + 1, each)

    def _route(self, layer: int, ids: np.ndarray) -> None:
        box = self.mailbox
        scores = np.full((self.tokens, EXPERTS), 0.01, dtype=np.float32)
        np.put_along_axis(scores, ids, 0.4, axis=1)
        order = np.argsort(-scores, axis=1, kind="stable")
        weights = np.full(ids.shape, 0.5, dtype=np.float32)
        if self._counts is not None:
            ids, weights = cut_columns(ids, weights, self._counts)
        box["ids"].numpy()[: self.tokens] = ids
        box["weights"].numpy()[: self.tokens] = weights
        box["ranked"].numpy()[: self.tokens] = order
        box["scores"].numpy()[: self.tokens] = np.take_along_axis(scores, order, axis=1)
        self.routings.append(
            LayerRouting(
                layer,
                ids,
                weights,
                order,
                box["scores"].numpy()[: self.tokens].copy(),
                counts=self._counts,
                step=self._number,
            )
        )

    def _forecast_later(self, layer: int, chosen: np.ndarray) -> None:
        """What later layers will choose, or nothing, if this GPU is too slow."""
        later = range(layer + 1, min(layer + 1 + self.forecasts, LAYERS))
        scores = np.linspace(0.6, 0.3, TOP_K, dtype=np.float32)[None].repeat(self.tokens, 0)
        self.forecast.append(tuple(Forecast(at, chosen[at], scores, self._number) for at in later))
        for d, at in enumerate(later):
            self.mailbox["forecast_ids"].numpy()[layer, d, : self.tokens] = chosen[at]
            self.mailbox["forecast_scores"].numpy()[layer, d, : self.tokens] = scores
        if self.forecasts_come:
            self.mailbox["forecast_ready"][0] = layer + 1

    def _await(self, flag: str, layer: int) -> None:
        deadline = monotonic() + 20
        while int(self.mailbox[flag][0]) < layer:
            assert monotonic() < deadline, f"{flag} never came to layer {layer}"

    def _compute(self) -> dict[int, bytes]:
        """What the kernels would read: the pair's block, once it is there; fills slots."""
        table = self.mailbox["table"].numpy()
        shape = self._table
        found: dict[int, bytes] = {}
        for i in range(int(table[0])):
            self._await("arrived", int(table[shape.waits_at + i]))
            block = ctypes.string_at(int(table[shape.blocks_at + i]), BLOCK)
            fill = int(table[shape.fills_at + i])
            if fill:
                ctypes.memmove(fill, block, BLOCK)
            first, end = (int(table[shape.firsts_at + i + d]) for d in (0, 1))
            for pair in table[shape.rows_at + first : shape.rows_at + end].tolist():
                assert pair not in found, "a pair is computed twice"
                found[pair] = block
        shares = table[shape.shares_at :].view(np.float32)[: self.tokens * TOP_K]
        self.shares.append(shares.copy())
        self.last_on_cpu = int(table[ON_CPU])
        self.waits.append(table[shape.waits_at : shape.waits_at + int(table[0])].tolist())
        self.there.append(int(table[ARRIVING]))
        return found
