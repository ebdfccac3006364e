"""The KV cache in GPU memory: every slot has space for the longest sequence, at fixed addresses,
so that captured kernels find it. Which token is where is data, not a shape."""

from __future__ import annotations

import torch

from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.kv_cache import cache_widths


class StaticCache:
    def __init__(
        self, spec: ModelSpec, slots: int, max_length: int, dtype: torch.dtype, device: str = "cuda"
    ) -> None:
        first, second = cache_widths(spec)
        space = (spec.num_layers, slots, max_length)
        self.first = torch.zeros((*space, first), dtype=dtype, device=device)
        self.second = torch.zeros((*space, second), dtype=dtype, device=device)
        self.slots, self.max_length = slots, max_length
