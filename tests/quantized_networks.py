"""Stock models whose dense weights are in integers, and the same numbers as plain matrices."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch

import stock
from moesaic.kernels.quantized_linear import DenseQuantizer, QuantizedNetwork, QuantizedWeight
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.models.decoder import Decoder
from moesaic.models.experts.feed_forward import GatedMlp
from moesaic.models.linear import Linear
from moesaic.models.open_model import load_decoder, open_model
from real_runs import Loaded, loaded


def quantized(name: str, dense: str, dtype: str = "fp32") -> Loaded:
    """A stock model; routed experts are those of all tests."""
    packer = DenseQuantizer(DensePrecision.of(dense))
    model = open_model(stock.saved(name).folder)
    return loaded(name, dtype)._replace(decoder=load_decoder(model, dtype, dense=packer))


def plain(model: Loaded) -> Loaded:
    """The same numbers, multiplied by PyTorch."""
    decoder = model.decoder
    return model._replace(decoder=plain_decoder(decoder))


def plain_decoder(decoder: Decoder) -> Decoder:
    layers, norm = widened(decoder.layers, decoder.dtype), decoder.norm
    head = widened(decoder.output, decoder.dtype)
    return Decoder(decoder.architecture, decoder.embedding, layers, norm, head)


def widened(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Linear) and isinstance(value.packed, QuantizedWeight):
        return Linear(value.packed.widened(dtype), value.bias)
    if isinstance(value, GatedMlp) and isinstance(value.packed, QuantizedNetwork):
        matrices = (value.packed.gate_up, value.packed.down)
        block = torch.cat([each.widened(dtype).flatten() for each in matrices])
        return GatedMlp(value.shape, block)
    if isinstance(value, tuple):
        parts = [widened(each, dtype) for each in value]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if not is_dataclass(value) or isinstance(value, type):
        return value
    return replace(value, **{f.name: widened(getattr(value, f.name), dtype) for f in fields(value)})
