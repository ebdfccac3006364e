"""HybriMoE (DAC 2025): figures 7, 8 and 9, table III and the two average speedups."""

from moesaic.reproductions.hybrimoe.table import Reproduction

__all__ = ["Reproduction"]
