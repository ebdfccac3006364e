"""Systems that migrate experts between DIMMs: whatever they do, every expert stays in one place of
main memory, no DIMM holds more than it has space for, and bytes are those of the moves."""

from __future__ import annotations

import numpy as np
import pytest

from dimm_machines import dimm_machine
from made_up import random_steps, small_model
from moesaic.core.layer_plan import Move
from moesaic.core.offloading import IN_DRAM
from moesaic.core.routing import ExpertId
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.policies.belief import warm_up
from moesaic.policies.compose import Composition
from moesaic.policies.layout.base import Profile
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.shape import Shape

LAYERS, EXPERTS, TOKENS = 3, 12, 8
MODEL = small_model(layers=LAYERS, experts=EXPERTS, top_k=3)


class Listening:
    """A machine that notes what moves, and looks at itself after every layer."""

    def __init__(self, machine: SimMachine, copied: np.ndarray) -> None:
        self.machine, self.copied = machine, copied
        self.moves: list[Move] = []
        self.checked = 0
        started = machine.memory.start

        def noted(move: Move) -> None:
            self.moves.append(move)
            started(move)

        machine.memory.start = noted  # type: ignore[method-assign]

    def check(self) -> None:
        memory, topology = self.machine.memory, self.machine.topology
        held = np.zeros(len(topology.memories), dtype=np.int64)
        for placement in range(len(topology.placements)):
            count = int(memory.located[placement].sum())
            for at in topology.memories_of[placement]:
                held[at] += count * topology.units_in(placement)
        arriving = [m.move for m in self.machine.moves.under_way if m.move.keep]
        for move in arriving:
            for at in topology.memories_of[move.destination]:
                held[at] += topology.units_in(move.destination)
        assert (held == memory.memory_occupied).all()
        assert (memory.memory_occupied <= memory.memory_slots).all()
        places = memory.located[IN_DRAM:].sum(axis=0)
        assert (places == 1 + self.copied).all(), "on two DIMMs, or nowhere"
        self.checked += 1


def run(seed: int, layout: str, memory_gb: float, split: int) -> Listening:
    spec = dimm_machine(memory_gb=memory_gb, split=split)
    machine = SimMachine(Physics(spec, MODEL), LAYERS)
    policies = PolicySet.of(
        schedule="trimoe", cache="pinned", prefetch="none", layout=layout, promote=False
    )
    composition = Composition(policies, Shape(LAYERS, EXPERTS, 3), LAYERS, checked=True)
    belief = warm_up(machine, TOKENS, machine.topology)
    machine.memory.place([ExpertId(layer, 0) for layer in range(LAYERS)])
    first, *rest = random_steps(seed, 13, MODEL, TOKENS)
    loads = np.stack([first.layer(layer).loads(EXPERTS) for layer in range(LAYERS)])
    made = composition.layout()
    where = made.initial(Profile(loads[np.newaxis], belief), machine.memory.resident > 0)
    for placement in np.unique(where[where != IN_DRAM]).tolist():
        experts = [ExpertId(*at) for at in np.argwhere(where == placement).tolist()]
        machine.memory.place(experts, placement)
    machine.memory.place([ExpertId(*at) for at in np.argwhere(made.copied).tolist()], IN_DRAM)
    machine.fill_main_memory()
    brain, listening = composition.brain(belief, layout=made), Listening(machine, made.copied)
    for step in rest:
        machine.step(step, brain)
        listening.check()
    return listening


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("layout", "memory_gb", "split"),
    [
        ("trimoe", 1e-3, 1),
        ("trimoe", 6.7e-4, 1),  # space for 11 experts in a DIMM, nine of which are taken
        ("trimoe:copies=2", 1e-3, 1),
        ("trimoe:splits=3", 1e-3, 2),
        ("trimoe:rebalance=false,prefetch=false", 1e-3, 1),
    ],
)
def test_no_expert_is_in_two_dimms_and_no_dimm_is_too_full(
    seed: int, layout: str, memory_gb: float, split: int
) -> None:
    found = run(seed, layout, memory_gb, split)
    machine, topology = found.machine, found.machine.topology
    assert found.checked == 12
    carried = 0
    for move in found.moves:
        hops = topology.route(move.source, move.destination)
        assert hops is not None
        carried += sum(machine.physics.carried_bytes(hop.share) for hop in hops)
    assert machine.bytes_moved == carried


def test_experts_do_move() -> None:
    """Else the test above would prove nothing."""
    kinds = {
        (move.source == IN_DRAM, move.destination)
        for seed in range(4)
        for move in run(seed, "trimoe", 1e-3, 1).moves
    }
    assert len(kinds) > 3
