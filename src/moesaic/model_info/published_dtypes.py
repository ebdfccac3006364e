"""The precisions that a model has where none is asked for, the same for runs, plans and
simulations: as it was published."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.model_info.model_spec import ModelSpec

AUTO = "auto"
_FLOATS = ("bf16", "fp16", "fp32")


class PublishedDtypes(NamedTuple):
    dense: str  # of everything but the routed experts
    experts: str


def published_dtypes(spec: ModelSpec) -> PublishedDtypes:
    """Experts that were published in fewer bits are held in integers; all else is in floating
    point then, in bf16."""
    published = spec.native_dtype
    return PublishedDtypes(published if published in _FLOATS else "bf16", published)
