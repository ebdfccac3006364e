"""Measuring this machine, and the simulator against it. Needs torch."""
