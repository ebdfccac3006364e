"""How long a DIMM's unit takes for one expert.

Activations come over the DIMM's channel, gate and up are multiplied, the activation unit works,
down is multiplied, results go back. The unit keeps its tokens' activations in a buffer, so tokens
that do not fit in it at once cost another pass over the weights."""

from __future__ import annotations

from typing import NamedTuple

from moesaic.core.units import GB, NS_PER_S
from moesaic.hardware.dimms import NdpSpec

VALUE_BYTES = 2  # activations are 16-bit


class Expert(NamedTuple):
    """One expert's shape, or that of a part of its intermediate width."""

    hidden: int
    intermediate: int
    weight_bytes: int

    @property
    def products(self) -> int:
        """Per token: gate, up and down."""
        return 3 * self.hidden * self.intermediate


def tokens_per_pass(unit: NdpSpec, expert: Expert) -> int:
    """How many tokens fit in the buffer: a token's input stays until its last intermediate value
    is there; down's results leave one by one, as rows are finished. At least one is computed, its
    input in pieces if need be."""
    per_token = VALUE_BYTES * (expert.hidden + expert.intermediate)
    return max(int(unit.buffer_kib * 1024) // per_token, 1)


def pass_sizes(tokens: int, fitting: int) -> tuple[int, int, int]:
    """(passes, tokens of a larger one, how many are larger): as even as can be, because a pass of
    one or two tokens waits for its weights."""
    passes = -(-tokens // fitting)
    small, larger = divmod(tokens, passes)
    return passes, small + 1 if larger else small, larger or passes


def unit_ns(unit: NdpSpec, expert: Expert, tokens: int, tflops: float | None = None) -> float:
    """Without activations on the channel: every pass takes the longer of reading all weights and
    multiplying them with its tokens; then the activation unit's time. `tflops` are those for
    weights of another precision than 16 bits."""
    reading = expert.weight_bytes / (unit.internal_gb_s * GB) * NS_PER_S
    rate = unit.tflops * unit.matmul_efficiency if tflops is None else tflops
    flops_per_s = rate * 1e12
    multiplying = 2 * expert.products / flops_per_s * NS_PER_S  # per token
    passes, size, count = pass_sizes(tokens, tokens_per_pass(unit, expert))
    smaller = passes - count
    total = count * max(reading, size * multiplying)
    total += smaller * max(reading, (size - 1) * multiplying)
    activating = expert.intermediate * tokens * unit.activation_cycles / unit.activation_units
    return total + activating / unit.clock_ghz


def channel_bytes(expert: Expert, tokens: int) -> int:
    """Activations there and results back."""
    return 2 * tokens * expert.hidden * VALUE_BYTES
