"""Names of precisions, and torch's dtypes."""

from __future__ import annotations

import torch

from moesaic.core.errors import UnknownName

TORCH_DTYPES: dict[str, torch.dtype] = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}


def torch_dtype(name: str) -> torch.dtype:
    if name not in TORCH_DTYPES:
        raise UnknownName("compute dtype", name, TORCH_DTYPES)
    return TORCH_DTYPES[name]
