"""What the brain believes things cost: tables per device and token count, in nanoseconds.

Belief is not truth. It comes from measuring a machine (`warm_up`, HybriMoE's warm-up phase),
from a description, or from a test that wants it wrong; the policies never see anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from moesaic.core.body import Probed
from moesaic.core.offloading import CPU, GPU, OFFLOADING, PCIE
from moesaic.core.topology import Topology
from moesaic.policies.costs import Costs, cost_table, extended
from moesaic.policies.timelines import Ints


class HostReads(NamedTuple):
    """How the host's reads are believed to disturb DIMMs (a rule of `tri.costs.CONTENTION`) and
    whether CPU and link share channels. Descriptions say that; no probe tells it."""

    contention: str = "own-share"
    shared: bool = True


USUAL_READS = HostReads()


@dataclass(frozen=True, slots=True)
class Belief:
    """`tables[0, t]` is what one expert with t tokens costs on the GPU, `tables[1, t]` on the
    CPU, up to the largest batch; the first CPU expert of a layer costs `cpu_first_ns` more.
    `decision_ns` passes between a view and the start of the plan made from it. While the link
    copies, CPU work takes `cpu_slowed` thousandths longer: both read the same memory. `costs` is
    the same of every device, placement and link, where it was measured; `host_reads` matter where
    main memory is DIMMs that compute."""

    tables: Ints  # [2, max tokens + 1]
    cpu_first_ns: int
    transfer_ns: int
    decision_ns: int = 0
    costs: Costs | None = None
    cpu_slowed: int = 0
    host_reads: HostReads = USUAL_READS

    @classmethod
    def of(cls, costs: Costs) -> Belief:
        """The part of it that GPU, CPU and the link between them play."""
        topology = costs.topology
        gpu, cpu = topology.device(GPU), topology.device(CPU)
        link = topology.lane(PCIE) - len(topology.devices)
        tables = np.stack([costs.expert_ns[at, topology.reads[at][0]] for at in (gpu, cpu)])
        return cls(tables, int(costs.first_ns[cpu]), int(costs.move_ns[link]), costs=costs)

    @classmethod
    def from_points(
        cls,
        gpu: Mapping[int, int],
        cpu: Mapping[int, int],
        cpu_first_ns: int,
        transfer_ns: int,
        max_tokens: int,
    ) -> Belief:
        """Tables from a few measured token counts: straight lines between them and beyond."""
        tables = np.stack([cost_table(gpu, max_tokens), cost_table(cpu, max_tokens)])
        return cls(tables, cpu_first_ns, transfer_ns)

    def off_by(self, errors: Mapping[str, float]) -> Belief:
        """A belief that is wrong by a factor for each device or link named: {"cpu": 1.2} takes the
        CPU's experts for 1.2 times as long as this one does."""
        if not errors:
            return self
        assert self.costs is not None, "only a belief about a topology knows lanes by name"
        wrong = Belief.of(self.costs.off_by(errors))
        return replace(
            wrong,
            decision_ns=self.decision_ns,
            cpu_slowed=self.cpu_slowed,
            host_reads=self.host_reads,
        )

    def covering(self, tokens: int) -> Belief:
        """The same belief, with tables for at least so many tokens."""
        if tokens < self.tables.shape[1]:
            return self
        costs = None if self.costs is None else self.costs.covering(tokens)
        return replace(self, tables=extended(self.tables, tokens), costs=costs)


def warm_up(body: Probed, max_tokens: int, topology: Topology = OFFLOADING) -> Belief:
    """Measure the machine at token counts 1, 2, 4, ... and fill the tables from that.

    One expert and then two tell a device's surcharge for the first one apart. The first device has
    none: it has just computed the router, and nothing is handed over to it. Last, the CPU is
    measured again while the link copies."""
    counts = [1 << i for i in range(max_tokens.bit_length())]
    if counts[-1] != max_tokens:
        counts.append(max_tokens)
    first_ns = [0] * len(topology.devices)

    def points(device: int, placement: int) -> dict[int, int]:
        name, own = topology.devices[device].name, topology.reads[device][0]
        where = None if placement == own else topology.placements[placement].name
        one = {t: body.probe(name, t, 1, where) for t in counts}
        if device == 0:
            return one
        two = {t: body.probe(name, t, 2, where) for t in counts}
        following = {t: max(two[t] - one[t], 0) for t in counts}
        if placement == own:
            first_ns[device] = max(one[1] - following[1], 0)
        return following

    def move_ns(link: int) -> int:
        return body.probe_transfer(topology.links[link].name)

    belief = Belief.of(Costs.stated(topology, max_tokens, points, first_ns.__getitem__, move_ns))
    return replace(belief, cpu_slowed=body.probe_slowdown(CPU))
