"""Cost tables from a machine description, instead of from probing a machine.

It reads the same description as the simulator's physics and nothing of the simulator: what the
simulator does beyond its description, a belief that was not measured does not know."""

from __future__ import annotations

from dataclasses import dataclass, replace

from moesaic.core.offloading import CPU
from moesaic.core.units import GB, NS_PER_S, ns_from_us, slowed_by
from moesaic.hardware.dimms import UNSHARED, NdpDevice
from moesaic.hardware.machine_spec import MachineSpec, SharedResource
from moesaic.hardware.machine_topology import placement_name
from moesaic.hardware.ndp_unit_time import Expert, channel_bytes, unit_ns
from moesaic.hardware.parts import PRIORITY
from moesaic.hardware.processors import Processor
from moesaic.hardware.roofline import fixed_ns, measured_factor, roofline_ns
from moesaic.model_info.model_spec import ModelSpec
from moesaic.policies.belief import Belief, HostReads
from moesaic.policies.costs import Costs

_WHOLE = 1000  # shares of a resource are counted in thousandths
_WAITING = 1000  # times as long: work that gets nothing of a resource until a copy has ended


def described_belief(
    machine: MachineSpec, model: ModelSpec, expert_dtype: str, max_tokens: int
) -> Belief:
    """What a machine description says of up to so many tokens per expert, with weights stored in
    `expert_dtype`."""
    topology, counts = machine.topology(), range(1, max_tokens + 1)
    stated = _StatedCosts(machine, model, expert_dtype)

    def points(device: int, placement: int) -> dict[int, int]:
        name, where = topology.devices[device].name, topology.placements[placement].name
        return {tokens: stated.following_ns(name, tokens, where) for tokens in counts}

    belief = Belief.of(
        Costs.stated(
            topology,
            max_tokens,
            points,
            lambda device: stated.first_ns(topology.devices[device].name),
            lambda link: stated.move_ns(topology.links[link].name),
        )
    )
    slowed = cpu_slowed(machine, stated.expert_ns(CPU, 1))
    return replace(belief, cpu_slowed=slowed, host_reads=host_reads(machine))


def host_reads(machine: MachineSpec) -> HostReads:
    """The rules that a description states, for any belief about its machine."""
    if machine.dimms is None:
        return HostReads()
    return HostReads(machine.dimms.contention, machine.dimms.sharing != UNSHARED)


def cpu_slowed(machine: MachineSpec, work_ns: int) -> int:
    """Thousandths that so much work of the CPU takes longer while the first link copies: it is as
    slow as the scarcest of what it shares with the link makes it."""
    link = machine.topology().links[0].name
    beside = max((_beside_ns(shared, link, work_ns) for shared in machine.shared()), default=0)
    return slowed_by(work_ns, max(beside, work_ns))


def _beside_ns(shared: SharedResource, link: str, work_ns: int) -> int:
    """What the work takes with the CPU's share of one resource while the link draws its own."""
    shares = {lane: round(shared.shares.get(lane, 0) * _WHOLE) for lane in (CPU, link)}
    own, taken = shares[CPU], shares[link]
    served, asked = _WHOLE, own + taken  # the CPU gets served / asked of what it wants
    if shared.rule == PRIORITY and (CPU in shared.first) != (link in shared.first):
        served, asked = _WHOLE - (0 if CPU in shared.first else taken), own
    if own == 0 or asked <= served:
        return work_ns
    return -(-work_ns * asked // served) if served > 0 else _WAITING * work_ns


@dataclass(frozen=True, slots=True)
class _StatedCosts:
    """One model on one described machine: what its numbers say of experts and moves."""

    machine: MachineSpec
    model: ModelSpec
    dtype: str

    def following_ns(self, device: str, tokens: int, placement: str) -> int:
        """One expert after the first of its layer, as a probe would find it: where one launch
        serves all experts of a token, each has its share of that."""
        launch = fixed_ns(self.machine.processor(device), "launch_us")
        return self.expert_ns(device, tokens, placement) + round(launch / self.model.top_k)

    def first_ns(self, device: str) -> int:
        """What the first expert of a layer costs more."""
        processor = self.machine.processor(device)
        return fixed_ns(processor, "first_expert_us") + fixed_ns(processor, "launch_us")

    def move_ns(self, link: str) -> int:
        spec = self.machine.link(link)
        flight = self.model.expert_bytes(self.dtype) / (spec.bandwidth_gb_s * GB) * NS_PER_S
        return ns_from_us(spec.latency_us) + round(flight)

    def expert_ns(self, device: str, tokens: int, placement: str | None = None) -> int:
        processor = self.machine.processor(device)
        if isinstance(processor, NdpDevice):
            return self._unit_ns(processor, tokens)
        taken = roofline_ns(
            processor,
            self.model.expert_bytes(self.dtype),
            2 * self.model.expert_params * tokens,
            self.dtype,
            self._reading_gb_s(processor, placement),
        )
        factor = measured_factor(processor, self.dtype, tokens)
        return ns_from_us(processor.expert_overhead_us) + round(taken * factor)

    def _unit_ns(self, device: NdpDevice, tokens: int) -> int:
        """A DIMM's unit: its own time, and its activations on the channel."""
        model, dimms = self.model, self.machine.dimms
        assert dimms is not None, "units are in DIMMs"
        expert = Expert(
            model.hidden_size, model.expert_intermediate, model.expert_bytes(self.dtype)
        )
        carrying = channel_bytes(expert, tokens) / (dimms.host_gb_s * GB) * NS_PER_S
        computing = unit_ns(device.unit, expert, tokens, device.effective_tflops(self.dtype))
        return ns_from_us(device.expert_overhead_us) + round(computing + carrying)

    def _reading_gb_s(self, processor: Processor, placement: str | None) -> float:
        named = processor.reads_gb_s.items()
        where = {placement_name(self.machine.flat, name): rate for name, rate in named}
        usual = processor.expert_bandwidth_gb_s(self.dtype)
        return usual if placement is None else where.get(placement, usual)
