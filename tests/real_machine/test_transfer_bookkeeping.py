"""Experts resident and in flight: does residency agree with a naive account of what happened, and
the memory with both, under any legal plans and any timing of the link?"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Event

import numpy as np
import pytest
import torch
from small_store import FAST, HandLink, small_store

from made_up import random_routing, small_model
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.offloading import GPU, OFFLOADING
from moesaic.core.report import Timeline
from moesaic.core.residency import Residency
from moesaic.core.routing import ExpertId
from moesaic.core.view import View
from moesaic.machines.real.copy_engine import Copy
from moesaic.machines.real.emulated_accelerator import EmulatedAccelerator
from moesaic.machines.real.ledger import Ledger
from random_plans import RandomBrain

LAYERS, EXPERTS, TOP_K = 3, 7, 3


class World:
    """The residency under test, a link driven by hand, and the naive account: a set and a list."""

    def __init__(self, slots: int, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.store = small_store(LAYERS, EXPERTS)
        self.accelerator = EmulatedAccelerator(self.store, slots, FAST)
        self.accelerator.link.close()
        self.link = HandLink()
        self.link.just_before_recall = self.let_time_pass
        self.accelerator.link = self.link  # type: ignore[assignment]
        self.residency = Residency(OFFLOADING, LAYERS, EXPERTS, (slots, None))
        books = self.store, self.accelerator, self.residency, self.accelerator, Timeline()
        self.ledger = Ledger(*books)
        self.there: set[ExpertId] = set()
        self.flying: list[Copy] = []
        self.moved = 0
        placed = [ExpertId(0, e) for e in range(min(slots // 2, EXPERTS))]
        self.ledger.place(placed)
        self.there.update(placed)

    def begin(self) -> None:
        """Let the next copy begin, if its place is free."""
        waiting = self.link.demanded or self.link.background
        if self.link.current is not None or not waiting:
            return
        after = waiting[0].after
        if after is not None and not after.is_set():
            return
        copy = self.link.begin()
        assert copy is not None
        if copy.kind == "prefetch":
            self.leaves(copy.move)
            self.flying.append(copy)
            self.moved += 1

    def arrive(self) -> None:
        copy = self.link.arrive()
        if copy is not None:
            self.flying.remove(copy)
            if copy.move.keep:
                self.there.add(ExpertId(copy.move.layer, copy.move.expert))

    def leaves(self, transfer: Move) -> None:
        if transfer.victim is not None:
            self.there.remove(transfer.victim)

    def let_time_pass(self) -> None:
        for _ in range(self.rng.integers(4)):
            self.begin() if self.rng.random() < 0.6 else self.arrive()

    def view(self) -> View:
        residency, in_flight = self.residency, self.ledger.in_flight()
        return View.of(residency, in_flight, (0, 0, 0))

    def compare(self) -> None:
        view = self.view()
        resident = {ExpertId(*map(int, at)) for at in np.argwhere(view.resident)}
        assert resident == self.there
        flying = [(copy.move.layer, copy.move.expert) for copy in self.flying]
        assert [(flight.layer, flight.expert) for flight in view.in_flight] == flying
        holding = [at.layer for at in self.there]
        holding += [copy.move.layer for copy in self.flying if copy.move.keep]
        assert view.held.tolist() == np.bincount(holding, minlength=LAYERS).tolist()
        assert view.occupied == len(holding) <= view.slots
        assert self.ledger.bytes_moved == self.moved * self.store.kernel.block_bytes
        for at in self.there:
            assert torch.equal(self.accelerator.block(*at), self.store.block(*at)), at

    def run(self, plan: LayerPlan) -> None:
        """A layer's demand, and its experts in the order of the accelerator's queue."""
        demanded = {transfer.expert for transfer in plan.transfers}
        events = {e: Event() for e in plan.queues[GPU] if e in demanded}
        copies = self.ledger.coming(plan.layer)
        wanted = self.ledger.demand(plan.transfers, events)
        assert list(wanted) == [transfer.expert for transfer in plan.transfers]
        for transfer in plan.transfers:
            self.leaves(transfer)
        self.flying += wanted.values()
        self.moved += len(wanted)
        copies |= wanted
        for expert in plan.queues[GPU]:
            self.let_time_pass()
            copy = copies.get(expert)
            while copy is not None and not copy.arrived.is_set():
                self.begin()
                self.arrive()
            block = copy.target if copy else self.accelerator.block(plan.layer, expert)
            assert torch.equal(block, self.store.block(plan.layer, expert)), "computed from this"
            if expert in events:
                events[expert].set()


@pytest.fixture(params=[2, 5, 12, LAYERS * EXPERTS])
def world(request: pytest.FixtureRequest, seed: int) -> Iterator[World]:
    made = World(request.param, seed)
    yield made
    made.accelerator.close()


@pytest.mark.parametrize("seed", range(12))
def test_residency_agrees_with_what_happened(world: World, seed: int) -> None:
    brain = RandomBrain(small_model(LAYERS, EXPERTS, TOP_K), world.residency.slots, seed)
    for layer in [*range(LAYERS)] * 6:
        world.ledger.cancel_background()
        assert not world.link.background
        world.compare()
        tokens = int(world.rng.integers(1, 4))
        routing = random_routing(world.rng, layer, tokens, EXPERTS, TOP_K, TOP_K)
        plan = brain.decide(routing, world.view())
        world.let_time_pass()
        world.run(plan)
        world.ledger.offer(brain.look_ahead())
        world.let_time_pass()
        world.ledger.poll()
        world.compare()
        world.let_time_pass()


@pytest.mark.parametrize("seed", range(12))
def test_a_reset_keeps_what_is_in_memory(world: World, seed: int) -> None:
    """Given up after the demand, with copies under way: afterwards nothing is in flight, every
    resident expert is there, and every slot can be used."""
    brain = RandomBrain(small_model(LAYERS, EXPERTS, TOP_K), world.residency.slots, seed)
    for layer in [*range(LAYERS)] * 4:
        world.ledger.cancel_background()
        routing = random_routing(world.rng, layer, 2, EXPERTS, TOP_K, TOP_K)
        plan = brain.decide(routing, world.view())
        events = {transfer.expert: Event() for transfer in plan.transfers}
        world.ledger.demand(plan.transfers, events)
        for _ in range(world.rng.integers(3)):
            world.begin()
            world.link.arrive()
        world.begin()
        for event in events.values():
            event.set()
        world.ledger.reset()
        resident = [ExpertId(*map(int, at)) for at in np.argwhere(world.residency.resident)]
        world.there, world.flying = set(resident), []
        world.moved = world.ledger.bytes_moved // world.store.kernel.block_bytes
        world.compare()
        assert len(world.accelerator._free) == world.residency.slots - len(resident)
