"""Units of a machine's numbers, by the ending of a field's name, and the range in which a machine
can be: beyond it a number is a slip of units, and virtual time would leave 64 bits."""

from __future__ import annotations

from math import inf
from typing import NamedTuple


class Quantity(NamedTuple):
    """`unlimited`: infinity is a value, too, of machines that are not described by a file."""

    unit: str
    least: float
    most: float
    unlimited: bool = False

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most or (self.unlimited and value == inf)

    def __str__(self) -> str:
        return f"{self.least:g} to {self.most:,.0f} {self.unit}".rstrip()


# Ending of a field's name -> what it counts; the first that fits applies.
_BY_ENDING = {
    "_gb_s": Quantity("GB/s", 1e-4, 1e6, unlimited=True),
    "_gb": Quantity("GB", 1e-6, 1e9, unlimited=True),
    "_us": Quantity("us", 0.0, 1e7),
    "_tflops": Quantity("TFLOP/s", 1e-5, 1e6),
    "_ghz": Quantity("GHz", 1e-3, 1e3),
    "_kib": Quantity("KiB", 1e-3, 1e9),
    "_efficiency": Quantity("", 1e-3, 1.0),
    "_cycles": Quantity("cycles", 1e-9, 1e6),
    "_product": Quantity("cycles", 1e-3, 1e6),
}
_PLAIN = Quantity("", 0.0, 1e6)  # counts and shares


def quantity(field: str) -> Quantity:
    """The quantity of a field by its name, such as `bandwidth_gb_s`."""
    fitting = (found for ending, found in _BY_ENDING.items() if field.endswith(ending))
    return next(fitting, _PLAIN)


def unit_of(key: str) -> str:
    """The unit of a number by its key, `gpu.matmul_tflops.bf16`: the part of it that is a field's
    name says so, others name parts of a machine."""
    found = (quantity(name) for name in key.split(".")[1:])
    unit = next((each.unit for each in found if each.unit), "")
    return "fraction" if key.endswith("_efficiency") else unit
