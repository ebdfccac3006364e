"""Where the parts of a routed layer are in a checkpoint: names differ by family and by file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol


@dataclass(frozen=True, slots=True)
class MoeLayout:
    """Names inside `model.layers.N.`; those of router and stacks inside the block's."""

    block: str = "mlp"
    router: str = "gate"
    stacks: tuple[str, str] = ("experts.gate_up_proj", "experts.down_proj")
    correction: str | None = None  # [1, experts]; None: beside the router, [experts]


class MoeNames(NamedTuple):
    """The same for one layer, in full."""

    block: str
    router: str  # without `.weight`
    stacks: tuple[str, str]  # of all experts: gate and up together, down
    correction: str | None = None  # of the scores, where it is not the router's own


class TensorNames(Protocol):
    def __contains__(self, name: str, /) -> bool: ...


def moe_names(found: TensorNames, layouts: tuple[MoeLayout, ...], layer: int) -> MoeNames:
    """The names by the first layout whose router is in the file; if there is none, the first, so
    that an error names what published files have."""
    every = [_named(layout, layer) for layout in layouts]
    return next((names for names in every if f"{names.router}.weight" in found), every[0])


def plain_names(layer: int) -> MoeNames:
    """Names for tensors with random weights."""
    return _named(MoeLayout(), layer)


def _named(layout: MoeLayout, layer: int) -> MoeNames:
    block = f"model.layers.{layer}.{layout.block}"
    gate_up, down = (f"{block}.{name}" for name in layout.stacks)
    correction = None if layout.correction is None else f"{block}.{layout.correction}"
    return MoeNames(block, f"{block}.{layout.router}", (gate_up, down), correction)
