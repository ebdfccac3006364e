"""What is asked of the figures, and how a table says whether it was reached."""

from __future__ import annotations

from dataclasses import dataclass

AMX = "amx_tile"


@dataclass(frozen=True, slots=True)
class Goal:
    """A ratio: so many times as fast as another, or within so many times a floor."""

    asked: float
    at_most: bool = False

    @property
    def words(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {self.asked:g}"

    def met(self, reached: float) -> bool:
        """Of the figure as it is shown: two digits after the point."""
        shown = round(reached, 2)
        return shown <= self.asked if self.at_most else shown >= self.asked

    def cell(self, reached: float | None) -> str:
        if reached is None:
            return "–"
        return f"{reached:.2f}" if self.met(reached) else f"{reached:.2f} (missed)"


# On a CPU alone, by precision: over the better of llama.cpp and its fork.
CPU_DECODE = {"bf16": Goal(1.3), "int4": Goal(1.5)}
CPU_PROMPT_AMX = {"bf16": Goal(4.0), "int4": Goal(3.0)}
CPU_PROMPT = Goal(1.2)  # without matrix units
STOCK_DECODE = Goal(3.0)
CPU_FLOOR = Goal(1.25, at_most=True)
OLMOE = Goal(1.5)
NOT_SLOWER = Goal(1.0)
# Beside a GPU.
GPU_DECODE = Goal(2.5)  # over llama.cpp
GPU_PROMPT = {"bf16": Goal(3.0), "int4": Goal(1.4)}
DRIVEN = Goal(1.7)  # decode over static experts, driven layer by layer from Python
STATIC_PROMPT = Goal(1.33)
BATCHES = Goal(1.5)  # over the best of other strategies
ACCELERATE = Goal(10.0)
DECODE_FLOOR, PROMPT_FLOOR = Goal(1.35, at_most=True), Goal(1.5, at_most=True)
FIDELITY = Goal(0.10, at_most=True)


def cpu_prompt(dtype: str, isa: list[str]) -> Goal:
    return CPU_PROMPT_AMX[dtype] if AMX in isa else CPU_PROMPT
