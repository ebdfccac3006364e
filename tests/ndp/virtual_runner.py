"""A model on a machine that is only described: its tokens, and the time they would take there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from virtual_machine import VirtualMachine

from moesaic.core.routing import ExpertId
from moesaic.engine.described_belief import host_reads
from moesaic.engine.memory.capacity import Capacity
from moesaic.engine.runner import Runner
from moesaic.hardware.machine_spec import MachineSpec
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.routing_adapter import RoutingAdapter
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.planning_cost import PlanningCost
from moesaic.models.decoder import Decoder
from moesaic.models.kv_cache import ContiguousCache
from moesaic.policies.belief import warm_up
from moesaic.policies.compose import Composition
from moesaic.policies.policy_set import PHASES, PolicySet
from moesaic.policies.shape import Shape

MAX_STEP_TOKENS = 512  # that costs are measured for; more are extrapolated


def virtual_runner(
    decoder: Decoder,
    store: ExpertStore,
    machine: MachineSpec,
    policies: PolicySet,
    capacity: Capacity,
    localized: Mapping[ExpertId, str] | None = None,
) -> Runner:
    """`localized` names the placement of experts that do not lie striped in main memory, such as
    "whole@dimm3". The runner's reports are in virtual time."""
    spec = decoder.architecture.spec
    shape = Shape(spec.num_moe_layers, spec.num_experts, spec.top_k)
    composition = Composition(policies.given_slots(capacity.slots), shape, capacity.slots)
    planning = PlanningCost.of(machine.planner, composition.decides, composition.looks_ahead)
    sim = SimMachine(Physics(machine, spec, store.kernel.dtype), capacity.slots, planning=planning)
    sim.memory.place(composition.placement())
    for expert, placement in (localized or {}).items():
        sim.memory.place([expert], sim.topology.placement(placement))
    sim.fill_main_memory()
    belief = warm_up(sim, MAX_STEP_TOKENS, sim.topology)
    return Runner(
        decoder,
        VirtualMachine(store, RoutingAdapter(composition.ranks), decoder.dtype, sim),
        composition.brain(replace(belief, host_reads=host_reads(machine))),
        ContiguousCache(spec, capacity.sequences, capacity.length, decoder.dtype),
        {phase: composition.schedule_for(phase) for phase in PHASES},
        composition.gate(),
    )
