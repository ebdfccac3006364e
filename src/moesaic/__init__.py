"""Moesaic: Mixture-of-Experts models larger than the GPU, on everything a machine has."""

__version__ = "0.1.0"
