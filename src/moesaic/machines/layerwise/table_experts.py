"""Experts on the device by the kernels that read a table: one launch for any number of them, from
blocks in the native kernels' layout."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from moesaic.kernels.gpu.table import write_rows
from moesaic.machines.layerwise.pairs import Pairs
from moesaic.machines.real.streams import Streams
from moesaic.model_info.expert_shape import ExpertShape

if TYPE_CHECKING:
    from moesaic.kernels.gpu.experts import GpuExperts

_STEPS = (1, 16, 64)  # tokens that kernels are cut for, besides the longest step


class TableExperts:
    """Implements `DeviceExperts` for up to `tokens` tokens. All sizes of steps share buffers."""

    def __init__(
        self,
        shape: ExpertShape,
        dtype: str,
        tokens: int,
        top_k: int,
        experts: int,
        streams: Streams,
    ) -> None:
        from moesaic.kernels.gpu.experts import GpuExperts

        self._streams = streams
        whole = GpuExperts(shape, dtype, tokens, top_k, experts)
        self.buffers = whole.inner, whole.parts
        self._by_tokens = {
            size: GpuExperts(
                shape, dtype, size, top_k, experts, buffers=(whole.inner, whole.parts)
            )
            for size in _STEPS
            if size < tokens
        }  # fmt: skip
        self._by_tokens[tokens] = whole

    def begin(self, hidden: torch.Tensor, pairs: Pairs) -> None:
        self._hidden, self._pairs = hidden.to(torch.bfloat16).contiguous(), pairs
        self._kernels = self._for(pairs.tokens)
        self._shares = np.zeros(pairs.weights.size, dtype=np.float32)

    def launch(self, experts: Sequence[int], blocks: Sequence[torch.Tensor]) -> None:
        shape = self._kernels.table_shape
        rows = [self._pairs.of(expert) for expert in experts]
        together = np.concatenate(rows)
        words = np.zeros(shape.rows_at + len(together), dtype=np.int64)  # no more is read
        ends = np.cumsum([0, *(len(each) for each in rows)])
        addresses = [block.data_ptr() for block in blocks]
        write_rows(words, shape, addresses, [0] * len(blocks), ends, together)
        self._shares[together] = self._pairs.weights.ravel()[together]
        table = self._streams.upload(torch.from_numpy(words))
        self._kernels.launch(table, self._hidden, max(len(each) for each in rows))

    def total(self) -> torch.Tensor:
        """Parts of pairs that were computed elsewhere are left over from other layers, and may be
        anything."""
        tokens, top_k = self._pairs.tokens, self._pairs.top_k
        shares = self._streams.upload(torch.from_numpy(self._shares).view(tokens, top_k))
        parts = self._kernels.parts[: tokens * top_k].view(tokens, top_k, -1)
        parts.masked_fill_((shares == 0)[:, :, None], 0)
        return torch.bmm(shares[:, None], parts)[:, 0]

    def _for(self, tokens: int) -> GpuExperts:
        """The kernels that are cut for the fewest tokens that are enough."""
        enough = [size for size in self._by_tokens if size >= tokens]
        assert enough, f"a step of {tokens} tokens, but buffers for {max(self._by_tokens)}"
        return self._by_tokens[min(enough)]
