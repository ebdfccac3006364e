"""The machine with a real GPU: decode steps as CUDA graphs, met by a native conductor."""
