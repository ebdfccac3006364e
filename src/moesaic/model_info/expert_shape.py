"""The shape of one expert, and what it computes between its products."""

from __future__ import annotations

from dataclasses import dataclass

ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")  # of gated feed-forwards, as files name them


@dataclass(frozen=True, slots=True)
class ClampedSwiglu:
    """gpt-oss: (up + 1) * gate * sigmoid(alpha * gate), gate limited from above, up on both
    sides."""

    alpha: float
    limit: float


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """A gated feed-forward: down(activation(gate(x)) * up(x)); perhaps each with a bias, perhaps
    with another product of gate and up."""

    hidden: int
    intermediate: int
    activation: str = "silu"
    bias: bool = False
    clamped: ClampedSwiglu | None = None  # in place of activation(gate) * up

    @property
    def unusual(self) -> str | None:
        """What only the kernels in PyTorch compute; None: all kernels compute this expert."""
        what = {"biases": self.bias, "a clamped activation": self.clamped is not None}
        return " and ".join(name for name, there in what.items() if there) or None

    @property
    def values(self) -> int:
        return 3 * self.hidden * self.intermediate
