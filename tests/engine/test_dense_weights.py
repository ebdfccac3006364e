"""Are dense weights packed where they should be, in the precision asked for, and counted so?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from planned_models import GROUPED, LATENT, architecture

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.units import GB
from moesaic.engine.dense_weights import dense_packer, packed_dtype
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.memory_plan import MemoryPlan, plan_memory
from moesaic.engine.memory.sizes import Sizes
from moesaic.kernels.instruction_sets import REFERENCE, available, choose
from moesaic.kernels.quantized_linear import DenseQuantizer, QuantizedNetwork, QuantizedWeight
from moesaic.model_info.dense_bytes import DensePrecision, packed_dense_bytes
from moesaic.model_info.dense_rows import SCRATCH, quantized_dense_bytes
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model
from moesaic.models.decoder import Decoder
from moesaic.models.experts.feed_forward import GatedMlp
from moesaic.models.linear import Linear
from moesaic.models.synthetic_model import synthetic_decoder

pytestmark = pytest.mark.without_native

TIED = replace(GROUPED, name="tied", tied_embeddings=True)
native = pytest.mark.skipif(available() == (REFERENCE,), reason="no native kernels here")


def test_precisions_by_part() -> None:
    assert DensePrecision.of("int4") == ("int4", "int4", "int4")
    mixed = DensePrecision.of("head=int8+attention=int4")
    assert mixed == ("int4", "bf16", "int8")
    assert DensePrecision.of(str(mixed)) == mixed
    assert str(DensePrecision.of("head=int4+attention=int4+feed_forward=int4")) == "int4"
    for wrong in ("fp32", "head=fp8", "router=int4", "head=", "", "head=int4+"):
        with pytest.raises(UnknownName):
            DensePrecision.of(wrong)


def test_an_accelerator_has_integers_only_where_they_are_asked_for() -> None:
    for dense in ("auto", "bf16", "head=bf16"):
        settings = EngineSettings(accelerator="emulated", dense_dtype=dense)
        assert packed_dtype(settings, "bf16") is None
        assert dense_packer(settings, "bf16") is None
    settings = EngineSettings(accelerator="cuda", dense_dtype="head=int4", kernel=REFERENCE)
    assert packed_dtype(settings, "fp32") == ("bf16", "bf16", "int4")
    assert isinstance(dense_packer(settings, "fp32"), DenseQuantizer)


@native
def test_auto_packs_what_the_cpu_computes_in_bf16() -> None:
    assert packed_dtype(EngineSettings(), "bf16") == DensePrecision.of("bf16")
    assert packed_dtype(EngineSettings(), "fp32") is None
    assert packed_dtype(EngineSettings(kernel=REFERENCE), "bf16") is None
    assert packed_dtype(EngineSettings(accelerator="emulated"), "bf16") is None
    assert packed_dtype(EngineSettings(dense_dtype="int8"), "fp32") == DensePrecision.of("int8")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"dense_dtype": "int4", "kernel": REFERENCE}, "needs the native CPU kernels"),
        ({"dense_dtype": "bf16", "dtype": "fp32", "accelerator": "emulated"}, "Use --dtype bf16"),
    ],
)
def test_what_cannot_be_packed_is_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ImpossibleSetting, match=said):
        EngineSettings(**settings)
    with pytest.raises(UnknownName, match="dense dtype"):
        EngineSettings(dense_dtype="int3")


@native
@pytest.mark.parametrize("spec", [GROUPED, LATENT], ids=lambda spec: spec.name)
@pytest.mark.parametrize("dense", ["bf16", "int4", "head=int8"])
def test_what_is_planned_is_what_is_kept(spec: ModelSpec, dense: str) -> None:
    """All bytes of a packed decoder but norms and biases, and nothing twice."""
    from moesaic.kernels.native_linear import DenseRunner

    precision = DensePrecision.of(dense)
    runner = DenseRunner(precision, choose("auto"))
    decoder = synthetic_decoder(architecture(spec), "bf16", dense=runner)
    assert decoder.head.device.type == "meta"
    planned = packed_dense_bytes(spec, "bf16", precision)
    assert planned == Sizes.of(spec, EngineSettings(dense_dtype=dense)).dense
    assert kept_bytes(decoder) == planned


@pytest.mark.parametrize("spec", [GROUPED, TIED, LATENT], ids=lambda spec: spec.name)
@pytest.mark.parametrize("dense", ["int8", "int4", "head=int8", "feed_forward=int4+attention=int8"])
def test_so_it_is_for_an_accelerator(spec: ModelSpec, dense: str) -> None:
    """Up to norms and biases, and a tied embedding once more only where the head is quantised."""
    precision = DensePrecision.of(dense)
    decoder = synthetic_decoder(architecture(spec), "bf16", "reference", DenseQuantizer(precision))
    planned = quantized_dense_bytes(spec, "bf16", precision)
    settings = EngineSettings(dense_dtype=dense, accelerator="emulated")
    assert planned == Sizes.of(spec, settings).dense
    assert kept_bytes(decoder) == planned
    assert decoder.dense is None, "nothing computes natively"


def test_what_is_saved_is_left_for_slots() -> None:
    """The plan of a GPU: dense weights as counted, what is widened at once, and more experts."""
    spec, plans = load_model("qwen3-30b-a3b"), {}
    for dense in ("auto", "int8", "int4"):
        settings = EngineSettings(
            accelerator="cuda", gpu_memory_gb=16.0, max_model_len=1024, dense_dtype=dense
        )
        plans[dense] = plan_memory(spec, settings, 200 * GB, 100 * GB)
    slots = [plan.capacity.slots for plan in plans.values()]
    assert slots == sorted(slots)
    part = {name: bytes_of(plan, "dense weights") for name, plan in plans.items()}
    block = Sizes.of(spec, EngineSettings()).block
    scratch = 2 * SCRATCH
    assert bytes_of(plans["int4"], "workspace") - bytes_of(plans["auto"], "workspace") == scratch
    saved = part["auto"] - part["int4"] - scratch
    assert abs((slots[2] - slots[0]) * block - saved) <= 2 * block * spec.num_moe_layers
    assert [plan.dense_dtype for plan in plans.values()] == ["bf16", "int8", "int4"]


def bytes_of(plan: MemoryPlan, part: str) -> int:
    return next(each.bytes for each in plan.parts if each.name == part)


def kept_bytes(decoder: Decoder) -> int:
    kept = int(decoder.embedding.nbytes)
    if decoder.head is not decoder.embedding:
        kept += packed_bytes(decoder.output)
    for layer in decoder.layers:
        kept += sum(packed_bytes(value) for value in fields_of(layer.attention))
        kept += sum(packed_bytes(value) for value in fields_of(layer.feed_forward))
    return kept


def fields_of(value: Any) -> list[Any]:
    fields = [getattr(value, name) for name in value.__slots__]
    queries = [part for part in fields if type(part).__name__ == "QueryProjection"]
    routers = [part for part in fields if type(part).__name__ == "Router"]
    nested = [getattr(part, name) for part in queries for name in part.__slots__]
    return [*fields, *nested, *(part.weight for part in routers)]


def packed_bytes(value: Any) -> int:
    """Of the network's own memory, where it is not packed."""
    if isinstance(value, Linear):
        packed = value.packed
        if packed is None:
            return int(value.weight.nbytes)
        memory = packed if isinstance(packed, QuantizedWeight) else packed.memory
        return int(memory.nbytes)
    if isinstance(value, GatedMlp):
        network = value.packed
        if network is None:
            return int(value.block.nbytes)
        if isinstance(network, QuantizedNetwork):
            return network.gate_up.nbytes + network.down.nbytes
        return int(network.block.nbytes)
    if isinstance(value, torch.Tensor) and value.dim() > 1:
        return int(value.nbytes)
    return 0
