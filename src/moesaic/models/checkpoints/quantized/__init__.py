"""Quantized matrices in safetensors: which tensors they are stored as, and their values."""
