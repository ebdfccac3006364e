"""A machine in virtual time: integer nanoseconds, equal inputs give equal bits."""

from moesaic.machines.sim.machine import SimMachine

__all__ = ["SimMachine"]
