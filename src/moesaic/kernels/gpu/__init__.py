"""Expert kernels for GPUs, in Triton. They read the blocks that the CPU kernels read."""
