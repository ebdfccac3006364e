"""Studies on the engine and the simulator: simulate, bench, profile, fidelity, quality, eval."""
