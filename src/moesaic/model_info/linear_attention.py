"""Linear attention (a gated delta net, Qwen3-Next): its sizes, and what a sequence keeps of it.

Instead of keys and values of all tokens, a layer keeps one matrix per head, and the last inputs of
a short convolution over time. To shorten a sequence, as rejected drafts and tokens that run again
do, an older state and what came after it are kept too (`models/attentions/recurrent_buffer.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.dtypes import weight_bytes
from moesaic.model_info.sliding_window import REWIND

CHUNK = 64  # tokens of a prompt that are computed together
LOGGED = 2 * REWIND  # tokens that a state can be computed again from
STATE_BYTES = 4  # of a value of the matrices: fp32 in every model


@dataclass(frozen=True, slots=True)
class LinearAttentionSizes:
    key_heads: int  # of queries and keys
    value_heads: int  # a multiple of them; every one has a matrix
    key_dim: int  # of a head
    value_dim: int
    conv_kernel: int  # tokens that the convolution sees, the own one included

    @property
    def value_width(self) -> int:
        return self.value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Queries, keys and values of a token, which go through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_width

    @property
    def state_values(self) -> int:
        """The matrices of one layer and sequence."""
        return self.value_heads * self.key_dim * self.value_dim

    @property
    def flops_per_token(self) -> int:
        """The products beside the projections: reading, changing and querying the state."""
        return 6 * self.state_values

    @property
    def state_bytes(self) -> int:
        return STATE_BYTES * self.state_values

    def small_params(self, hidden: int) -> int:
        """Convolution, and rates of forgetting and learning: never packed."""
        return self.channels * self.conv_kernel + 2 * self.value_heads * hidden

    def projections(self, hidden: int) -> list[tuple[int, int]]:
        """Outputs and inputs of the large matrices."""
        values = self.value_width
        return [(self.channels, hidden), (values, hidden), (hidden, values)]

    def params(self, hidden: int) -> int:
        """The parameters of one layer."""
        matrices = sum(outputs * inputs for outputs, inputs in self.projections(hidden))
        return matrices + self.small_params(hidden)

    def kept_bytes(self, dtype: str) -> int:
        """The bytes of one layer and sequence, with activations in `dtype`: the state, an older
        one, and the inputs in between."""
        rows = 2 * (self.conv_kernel - 1) + LOGGED
        rates = 4 * 2 * self.value_heads * LOGGED
        return 2 * self.state_bytes + weight_bytes(rows * self.channels, dtype) + rates

    def workspace(self, tokens: int) -> int:
        """Temporaries of one layer with so many new tokens of a sequence, at most: in fp32, rows
        before and after the convolution, heads repeated, and what a chunk's solution needs."""
        heads = 8 * self.value_heads * (self.key_dim + self.value_dim)
        pairs = 5 * self.value_heads * CHUNK
        per_token = 6 * self.channels + 3 * self.value_width + heads + pairs
        return 4 * tokens * per_token + 3 * self.state_bytes
