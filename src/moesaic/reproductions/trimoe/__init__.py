"""TriMoE: figures 3 and 5 to 9, table 3 and section 5.5, and what goes beyond them."""

from moesaic.reproductions.trimoe.table import Reproduction

__all__ = ["Reproduction"]
