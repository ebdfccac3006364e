"""Do packed matrices multiply like the ones they were made from?"""

from __future__ import annotations

import pytest
import torch

from moesaic.core.errors import BrokenWeights
from moesaic.kernels.instruction_sets import REFERENCE, available

pytestmark = pytest.mark.skipif(available() == (REFERENCE,), reason="no native kernels here")
if available() != (REFERENCE,):
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.model_info.dense_bytes import DensePrecision

ISAS = [name for name in available() if name != REFERENCE]
# Against the stored weights: rounding of a bf16 result, and int8's codes of the activations.
CLOSE = {"bf16": 0.01, "int8": 0.03, "int4": 0.01}
# Of the weights themselves.
KEPT = {"bf16": 0.003, "int8": 0.02, "int4": 0.12}


def runner(isa: str) -> DenseRunner:
    return DenseRunner(DensePrecision.of("bf16"), isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("dtype", CLOSE)
def test_products_of_any_number_of_tokens(isa: str, dtype: str) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(150, 320), torch.randn(150).bfloat16()
    packed = runner(isa).pack(weight, dtype)
    stored = packed.unpacked()
    assert float((stored - weight).norm() / weight.norm()) < KEPT[dtype]
    for tokens in (0, 1, 2, 5, 16, 33, 257, 600):
        x = torch.randn(tokens, 320).bfloat16()
        expected = x.float() @ stored.T + bias.float()
        out = packed(x, bias)
        assert out.shape == expected.shape
        assert out.dtype == torch.bfloat16
        if tokens:
            assert float((out.float() - expected).norm() / expected.norm()) < CLOSE[dtype]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_other_activations(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(40, 70), torch.randn(40).to(dtype)
    packed = runner(ISAS[0]).pack(weight, "bf16")
    x = torch.randn(2, 3, 90).to(dtype)[..., :70]
    expected = x.float() @ packed.unpacked().T + bias.float()
    out = packed(x, bias)
    assert out.dtype == dtype
    assert out.shape == (2, 3, 40)
    assert float((out.float() - expected).norm() / expected.norm()) < 0.01


def test_what_does_not_fit_is_refused() -> None:
    packed = runner(ISAS[0]).pack(torch.randn(40, 70), "bf16")
    for x, bias in ((torch.randn(2, 71), None), (torch.randn(2, 70), torch.zeros(41))):
        with pytest.raises(ValueError, match=r"cannot be multiplied|a bias has"):
            packed(x, bias)
    with pytest.raises(ValueError, match=r"cannot be multiplied|a bias has"):
        packed(torch.zeros(2, 70, dtype=torch.int64))
    damaged = torch.randn(40, 70)
    damaged[3, 5] = torch.nan
    with pytest.raises(BrokenWeights, match="finite"):
        runner(ISAS[0]).pack(damaged, "int4")
