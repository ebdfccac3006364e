"""Do products with quantised dense matrices on a GPU say what the matrices say, however many rows
there are, and in a captured graph? Needs a GPU; `test_dense_source.py` has the arithmetic."""

from __future__ import annotations

import pytest
import torch

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)

from moesaic.kernels.gpu import dense
from moesaic.kernels.quantized_linear import DenseQuantizer, QuantizedWeight
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.models.placed import placed

SHAPES = [(5120, 2048), (2048, 4096), (77, 72), (300, 333), (20000, 2048)]


def on_gpu(shape: tuple[int, int], dtype: str) -> QuantizedWeight:
    torch.manual_seed(sum(shape))
    weight = torch.randn(shape) * shape[1] ** -0.5
    made = DenseQuantizer(DensePrecision.of(dtype)).pack(weight, dtype)
    moved = placed(made, "cuda")
    assert isinstance(moved, QuantizedWeight)
    return moved


def error(got: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((got.double() - wanted).norm() / wanted.norm())


@pytest.mark.parametrize("dtype", ["int8", "int4"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_number_of_rows(shape: tuple[int, int], dtype: str) -> None:
    weight = on_gpu(shape, dtype)
    bias = torch.randn(shape[0], device="cuda").bfloat16()
    for rows in (1, 2, 3, 16, 21, 32, 33):
        x = torch.randn(rows, shape[1], device="cuda").bfloat16()
        wanted = x.double() @ weight.widened().double().T + bias.double()
        got = weight(x, bias)
        assert got.shape == wanted.shape
        assert error(got, wanted) < 0.005, rows


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_widened_on_the_gpu_as_on_the_cpu(dtype: str) -> None:
    for shape in SHAPES[:4]:
        weight = on_gpu(shape, dtype)
        assert torch.equal(dense.widened(weight), weight.widened(torch.bfloat16))


@pytest.mark.parametrize("dtype", ["int8", "int4"])
def test_pieces_of_a_wide_head_in_a_graph(dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed with other inputs; the scratch holds a piece only."""
    for module in ("kernels.gpu.dense", "kernels.quantized_matrix"):
        monkeypatch.setattr(f"moesaic.{module}.SCRATCH", 1000 * 256)
    weight = on_gpu((3500, 256), dtype)
    assert len(weight.scratch.on(weight.codes.device)) == 1000 * 256
    x = torch.randn(40, 256, device="cuda").bfloat16()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        weight(x)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        out = weight(x)
    for _ in range(2):
        x.copy_(torch.randn_like(x))
        graph.replay()
        torch.cuda.synchronize()
        assert error(out, x.double() @ weight.widened().double().T) < 0.005
