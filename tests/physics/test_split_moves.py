"""A move in two pieces, the least that is more than one: is neither forgotten by itself?"""

from __future__ import annotations

from made_up import routing_of, small_model
from moesaic.core.layer_plan import LayerPlan, Move
from moesaic.core.report import Timeline
from moesaic.core.routing import ExpertId
from moesaic.core.step import Step
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from more_devices import with_dimms

US = 1000
MODEL = small_model(layers=2, experts=4, top_k=1)


def test_the_second_piece_follows_though_it_had_not_started() -> None:
    """From stripes over three DIMMs to the first: the links of the second and the third carry a
    third each, 80 us; that of the second is busy for 240 us before. Layer 1 forgets what has not
    started, but not the rest of what has."""
    machine = SimMachine(Physics(with_dimms(3), MODEL), 2, Timeline())
    topology, memory = machine.topology, machine.memory
    stripes = topology.placement("striped@dimm0+dimm1+dimm2")
    first, second, third = (topology.placement(f"whole@dimm{at}") for at in range(3))
    memory.place([ExpertId(0, 0), ExpertId(1, 0)], stripes)
    memory.place([ExpertId(1, 3)], second)
    machine.begin(Step.decode(1), lambda layer: routing_of(layer, [[0]]))
    machine.route(0)
    background = (
        Move(1, 3, source=second, destination=third),
        Move(1, 0, source=stripes, destination=first),
    )
    machine.run(LayerPlan(0, {"cpu": (0,)}, (), background))
    machine.moves.cancel_background()
    machine.clock.advance(1000 * US)
    pieces = [s for s in machine.timeline.spans if s.kind == "prefetch" and s.expert == 0]
    assert sorted((s.end_ns - s.start_ns) // US for s in pieces) == [80, 80]
    assert memory.located[first, 1, 0]
    assert not list(machine.moves.under_way)
