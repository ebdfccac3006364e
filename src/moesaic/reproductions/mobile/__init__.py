"""MoBiLE: the speedups of tables II, III and IV and of figure 5, simulated."""

from moesaic.reproductions.mobile.table import Reproduction

__all__ = ["Reproduction"]
