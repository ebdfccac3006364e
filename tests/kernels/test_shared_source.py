"""Do the CUDA kernels of shared experts in bf16 compute what the reference does? Their source is
compiled for the CPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cuda_on_host import COMPILER, compiled, launch
from moesaic.kernels.gpu import activations
from moesaic.kernels.reference import block_views, feed_forward
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
HIDDEN, INNER = 2088, 328  # rows take several reads, the last one not whole


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_pytorch_tanh"])
def test_a_gated_network_in_bf16(activation: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = ExpertShape(HIDDEN, INNER, activation)
    block = (torch.randn(shape.values) * 0.03).bfloat16()
    x = torch.randn(1, HIDDEN).bfloat16()
    sizes = {"HIDDEN": HIDDEN, "INNER": INNER, "ACTIVATION": activations.number(shape)}
    library = compiled("shared", sizes, ["gated_product", "down_product"], tmp_path)
    gate_up, down = block_views(shape, block)
    inner, out = torch.full((INNER + 8,), 7.0).bfloat16(), torch.full((HIDDEN + 8,), 7.0).bfloat16()
    launch(library, "gated_product", (-(-INNER // 8), 1), 256, x, gate_up, inner)
    launch(library, "down_product", (-(-HIDDEN // 8), 1), 256, inner, down, out)
    wanted = feed_forward(shape, block.float(), x.float())[0]
    error = (out[:HIDDEN].float() - wanted).norm() / wanted.norm()
    assert error < 0.01
    assert (inner[INNER:] == 7).all()
    assert (out[HIDDEN:] == 7).all()
