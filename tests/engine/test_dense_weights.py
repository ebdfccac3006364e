"""Are dense weights packed where they should be, in the precision asked for, and counted so?"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from planned_models import GROUPED, LATENT, architecture

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.engine.dense_weights import packed_dtype
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.sizes import Sizes
from moesaic.kernels.instruction_sets import REFERENCE, available, choose
from moesaic.model_info.dense_bytes import DensePrecision, packed_dense_bytes
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.feed_forward import GatedMlp
from moesaic.models.linear import Linear
from moesaic.models.synthetic_model import synthetic_decoder

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
        ({"dense_dtype": "int4", "accelerator": "emulated"}, "of accelerator 'emulated'"),
        ({"dense_dtype": "int4", "kernel": REFERENCE}, "needs the native CPU kernels"),
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
    kept = decoder.embedding.nbytes + packed_bytes(decoder.output) + decoder.head.nbytes
    assert decoder.head.device.type == "meta"
    for layer in decoder.layers:
        kept += sum(packed_bytes(value) for value in fields_of(layer.attention))
        kept += sum(packed_bytes(value) for value in fields_of(layer.feed_forward))
    planned = packed_dense_bytes(spec, "bf16", precision)
    assert planned == Sizes.of(spec, EngineSettings(dense_dtype=dense)).dense
    assert kept - decoder.head.nbytes == planned


def fields_of(value: Any) -> list[Any]:
    fields = [getattr(value, name) for name in value.__slots__]
    queries = [part for part in fields if type(part).__name__ == "QueryProjection"]
    routers = [part for part in fields if type(part).__name__ == "Router"]
    nested = [getattr(part, name) for part in queries for name in part.__slots__]
    return [*fields, *nested, *(part.weight for part in routers)]


def packed_bytes(value: Any) -> int:
    if isinstance(value, Linear):
        return 0 if value.packed is None else int(value.packed.memory.nbytes)
    if isinstance(value, GatedMlp):
        assert value.packed is not None
        return int(value.packed.block.nbytes)
    if isinstance(value, torch.Tensor) and value.dim() > 1:
        return int(value.nbytes)
    return 0
