"""The executor that runs a pass layer by layer, in PyTorch: on a CPU, on the lanes of an emulated
accelerator, or on a GPU beside the CPU."""
