"""The machine with a real GPU: steps layer by layer, or decode steps as CUDA graphs that a native
conductor meets."""
