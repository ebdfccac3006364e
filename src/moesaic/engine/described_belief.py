"""Cost tables from a machine description, instead of from probing a machine."""

from __future__ import annotations

from moesaic.core.offloading import CPU, GPU
from moesaic.machines.sim.physics import Physics
from moesaic.policies.belief import Belief


def described_belief(physics: Physics, most: int) -> Belief:
    """What a machine description says of up to so many tokens per expert."""
    counts = range(1, most + 1)
    return Belief.from_points(
        gpu={t: physics.expert_ns(GPU, t) for t in counts},
        cpu={t: physics.expert_ns(CPU, t) for t in counts},
        cpu_first_ns=physics.cpu_first_ns,
        transfer_ns=physics.transfer_ns,
        max_tokens=most,
    )
