"""Of a step that is collected late: is its time still the machine's?"""

from __future__ import annotations

from time import perf_counter_ns, sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytest.importorskip("moesaic.machines.captured._conductor")
pytest.importorskip("moesaic.kernels._native", reason="the native kernels were not built")

from moesaic.core.report import Timeline
from moesaic.machines.captured.captured import Captured
from moesaic.machines.captured.stamps import LayerStamps, Stamps
from moesaic.machines.real.executor import Network
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.machines.real.routing_adapter import RoutingAdapter

pytestmark = pytest.mark.without_native

LATE_S = 0.05
COMPUTED_NS = 3_000_000
NATIVE: Any = object()


class Steps:
    """Every step takes as long."""

    times: tuple[Any, ...] = ()

    def begin(self, *given: Any) -> None:
        self.started_ns = perf_counter_ns()

    def finish(self, ahead: bool) -> torch.Tensor:
        sleep(max(self.ended_ns(()) - perf_counter_ns(), 0) / 1e9)
        return torch.zeros(1)

    def ended_ns(self, times: object) -> int:
        return self.started_ns + COMPUTED_NS

    def busy_ns(self, times: object) -> int:
        return COMPUTED_NS


def decoding() -> Captured:
    timeline: Any = Timeline(enabled=False)
    store: Any = SimpleNamespace(kernel=SimpleNamespace(block_bytes=1), experts=4, layers=1)
    passed = dict.fromkeys(("advance", "blocks_placed"), lambda slot, tokens: None)
    cache: Any = SimpleNamespace(**passed)
    absent: Any = None
    network = Network(absent, cache, store, RoutingAdapter(1))
    found = Captured(network, absent, absent, absent, lambda: NATIVE, timeline)
    found._made = NATIVE, Steps()  # type: ignore[assignment]
    return found


def work(ahead: bool) -> ForwardPass:
    return ForwardPass([Piece(0, [1], first=0)], ahead=ahead)


def test_a_late_caller_does_not_make_a_step_longer() -> None:
    found = decoding()
    found.submit(1, work(ahead=True), None)  # type: ignore[arg-type]
    sleep(LATE_S)
    found.collect()
    assert found.report().latency_ns == COMPUTED_NS


def test_a_whole_step_ends_when_its_caller_has_it() -> None:
    found = decoding()
    found.submit(1, work(ahead=False), None)  # type: ignore[arg-type]
    found.collect()
    assert found.report().latency_ns > COMPUTED_NS
    found.report()
    assert found._lane_ns == {"gpu": COMPUTED_NS, "cpu": 0}, "a step's work is counted once"


def test_a_gpu_that_waits_does_not_work() -> None:
    """Of 1,000 ns, it waits 100 and 30 for plans, and 50 and 200 for the CPU's sums."""
    stamps = Stamps(2, device="cpu")
    layers = [LayerStamps(100, 150, 250, 0, 300, 350), LayerStamps(450, 0, 480, 0, 999, 680)]
    stamps._left[:] = torch.tensor([0, 1000, *layers[0], *layers[1]])
    stamps.keep()
    assert stamps.busy_ns([True, False]) == 1000 - (100 + 30) - (50 + 200)


def test_the_end_is_read_from_what_the_gpu_wrote() -> None:
    stamps = Stamps(3, device="cpu")
    routed = 2 + len(LayerStamps._fields) * 2
    stamps._left[1], stamps._left[routed] = 5_000, 3_800
    stamps.keep()
    assert stamps.from_routing_to_end(2) == 1_200
    assert stamps.read().ended - stamps.read().layers[2].routed == 1_200
