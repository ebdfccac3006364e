"""Is a product that is computed in fp32 the bf16 product, rounded once?"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from moesaic.kernels import products


@pytest.mark.parametrize("piece", [64, 1 << 20], ids=["pieces", "whole"])
@pytest.mark.parametrize("with_bias", [False, True])
def test_widened_products_are_rounded_once(
    monkeypatch: pytest.MonkeyPatch, piece: int, with_bias: bool
) -> None:
    monkeypatch.setattr(products, "widens", lambda dtype: dtype is torch.bfloat16)
    monkeypatch.setattr(products, "PIECE", piece)
    random = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=random).bfloat16() for shape in ((3, 32), (20, 32), (20,))
    )
    given = bias if with_bias else None
    wide = functional.linear(x.float(), weight.float(), bias.float() if with_bias else None)
    found = products.linear(x, weight, given)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, wide.bfloat16())


def test_other_precisions_are_left_alone() -> None:
    assert not products.widens(torch.float32)
    assert not products.widens(torch.float16)
