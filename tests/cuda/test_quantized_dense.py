"""Does a network whose dense weights are in integers say what the same numbers say as plain
matrices? On both accelerators; without a GPU the CPU plays its part."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from cuda_runs import DEVICES
from graph_models import shrunk

import stock
from moesaic.kernels.quantized_linear import DenseQuantizer, QuantizedNetwork, QuantizedWeight
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.models.attentions.grouped_attention import GroupedAttention
from moesaic.models.attentions.latent_attention import LatentAttention
from moesaic.models.decoder import Decoder
from moesaic.models.experts.feed_forward import GatedMlp
from moesaic.models.linear import Linear
from moesaic.models.open_model import load_decoder, open_model
from moesaic.models.placed import placed_decoder
from moesaic.models.synthetic_model import synthetic_decoder
from real_runs import Loaded, Said, loaded, running, say, settings

# Stock models whose dense weights are in integers, and the same numbers as plain matrices.


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


FP32_TOLERANCE = 1e-4
ALONE = settings("best-split", "lru", "none", accelerator="none", kernel="reference")
PARTS = ["int8", "int4", "head=int8+attention=int4", "feed_forward=int8"]


def said(model: Loaded, device: str = "cpu", **changes: Any) -> Said:
    how = settings("hybrid", "mrs", "impact", **changes)
    with running(model, how, model.slots(0.3), device=device) as runner:
        return say(runner, steps=4)


def truth(model: Loaded) -> Said:
    with running(plain(model), ALONE) as runner:
        return say(runner, steps=4)


def assert_same(got: Said, wanted: Said) -> None:
    assert (got.logits - wanted.logits).abs().max() < FP32_TOLERANCE
    assert got.text == wanted.text


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", stock.FAMILIES)
def test_every_family_beside_a_gpu(name: str, device: str) -> None:
    model = quantized(name, "int4")
    assert_same(said(model, device, accelerator="cuda"), truth(model))


@pytest.mark.parametrize("dense", PARTS)
def test_parts_and_precisions(dense: str) -> None:
    model = quantized("qwen2-moe", dense)
    wanted = truth(model)
    for accelerator in ("cuda", "emulated"):
        assert_same(said(model, accelerator=accelerator), wanted)


def test_fewer_bits_are_not_the_same() -> None:
    """Or the others would say nothing."""
    texts = [truth(quantized("qwen2-moe", dense)).logits for dense in ("int8", "int4")]
    assert (texts[0] - texts[1]).abs().max() > 100 * FP32_TOLERANCE


@pytest.mark.parametrize("dense", ["bf16", "int4"])
def test_placed_queries_and_latents_are_one_matrix(dense: str) -> None:
    """Where both have the same inputs."""
    packer = DenseQuantizer(DensePrecision.of(dense))
    decoder = synthetic_decoder(shrunk("deepseek-v2-lite"), "bf16", "reference", packer)
    before, after = (each.layers[0].attention for each in (decoder, placed_decoder(decoder, "cpu")))
    assert isinstance(before, LatentAttention)
    assert isinstance(after, LatentAttention)
    assert after.query.down is None
    for old, new in ((before.query.up, after.query.up), (before.compress, after.compress)):
        assert torch.equal(values(new), values(old))
    assert memory(after.query.up)[1] == memory(after.compress)[0]


def values(linear: Linear) -> torch.Tensor:
    packed = linear.packed
    return packed.widened() if isinstance(packed, QuantizedWeight) else linear.weight


def memory(linear: Linear) -> tuple[int, int]:
    """Where its numbers begin and end."""
    packed = linear.packed
    of = packed.codes if isinstance(packed, QuantizedWeight) else linear.weight
    return of.data_ptr(), of.data_ptr() + of.nbytes


def test_placed_projections_are_one_matrix() -> None:
    """As kernels read them: rows of queries, keys and values one behind the other."""
    model = quantized("qwen2-moe", "int4")
    attention = placed_decoder(model.decoder, "cpu").layers[0].attention
    parts = [getattr(attention, name).packed for name in ("query", "key", "value")]
    for one, other in pairwise(parts):
        assert one.codes.data_ptr() + one.codes.nbytes == other.codes.data_ptr()
        assert one.scales.data_ptr() + one.scales.nbytes == other.scales.data_ptr()
    before = model.decoder.layers[0].attention
    assert isinstance(before, GroupedAttention)
    assert isinstance(before.key.packed, QuantizedWeight)
    assert torch.equal(parts[1].widened(), before.key.packed.widened())
