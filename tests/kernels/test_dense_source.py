"""Do the CUDA kernels of quantised dense matrices compute what those matrices say? Their source is
compiled for the CPU, so that this can be seen without a GPU: all but the timing of threads."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from best_token_cases import CASES, Case, random_case
from cuda_on_host import COMPILER, compiled, launch
from made_up import long
from moesaic.kernels.gpu import activations
from moesaic.kernels.quantize import FORMATS
from moesaic.kernels.quantized_linear import DenseQuantizer, QuantizedWeight
from moesaic.kernels.reference import block_views, feed_forward
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
# No multiple of a group; rows take several batches of reads, the last one not whole.
HIDDEN, ATTENDED, INNER, THREADS = 2088, 8232, 328, 256
TILES = (2, 4)
KERNELS = (
    "normed_product", "normed_head", "add_product", "gated_product", "down_product", "product",
    "widen",
)  # fmt: skip


class Source:
    def __init__(self, dtype: str, library: ctypes.CDLL, by_tiles: dict[int, ctypes.CDLL]) -> None:
        self.dtype, self.library, self.by_tiles = dtype, library, by_tiles

    def weight(self, outputs: int, inputs: int) -> QuantizedWeight:
        torch.manual_seed(outputs + inputs)
        matrix = torch.randn(outputs, inputs) * inputs**-0.5
        made = DenseQuantizer(DensePrecision.of(self.dtype)).pack(matrix, self.dtype)
        assert made is not None
        return made


@pytest.fixture(scope="module", params=list(FORMATS))
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Source:
    dtype = request.param
    sizes = {
        "HIDDEN": HIDDEN, "ATTENDED": ATTENDED, "INNER": INNER, "ACTIVATION": 0, "NORM_EPS": 1e-6
    }  # fmt: skip
    defines = {**sizes, "BITS": FORMATS[dtype].bits}
    folder = tmp_path_factory.mktemp(dtype)
    library = compiled("dense", defines, KERNELS, folder)
    by_tiles = {}
    for tiles in TILES:
        macros = {"BITS": FORMATS[dtype].bits, "TILES": tiles}
        folder = tmp_path_factory.mktemp(f"{dtype}-{tiles}")
        by_tiles[tiles] = compiled("dense_rows", macros, ["rows_product"], folder)
    return Source(dtype, library, by_tiles)


def assert_near(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """As near as bf16 can be: no weight may be another's, and none may be left out."""
    error = (got.double() - wanted).abs() / wanted.abs().clamp(min=0.05)
    assert error.max() < 2**-8


@pytest.mark.parametrize("kernel", ["normed_product", "normed_head"])
@pytest.mark.parametrize("biased", [True, False])
def test_a_norm_and_a_product(source: Source, kernel: str, biased: bool) -> None:
    outputs, each = 101, 2 if kernel == "normed_product" else 8
    weight = source.weight(outputs, HIDDEN)
    stream, norm = torch.randn(HIDDEN).bfloat16(), (1 + 0.2 * torch.randn(HIDDEN)).bfloat16()
    bias, out = torch.randn(outputs).bfloat16(), torch.full((outputs + 8,), 7.0).bfloat16()
    launch(
        source.library, kernel, (-(-outputs // (8 * each)), 1), THREADS, stream, norm,
        weight.codes, weight.scales, bias if biased else 0, out, outputs, each,
    )  # fmt: skip
    wide = stream.float()
    scaled = (wide * torch.rsqrt(wide.pow(2).mean() + 1e-6)).bfloat16()
    x = (norm * scaled).double()
    assert_near(out[:outputs], weight.widened().double() @ x + bias.double() * biased)
    assert (out[outputs:] == 7).all()


def test_an_output_projection_is_added(source: Source) -> None:
    blocks, outputs = 3, 24
    weight = source.weight(outputs, ATTENDED)
    attended, stream = torch.randn(ATTENDED).bfloat16(), torch.randn(HIDDEN).bfloat16()
    bias, before = torch.randn(outputs).bfloat16(), stream.clone()
    launch(
        source.library, "add_product", (blocks, 1), THREADS, attended, weight.codes,
        weight.scales, bias, stream,
    )  # fmt: skip
    product = weight.widened().double() @ attended.double() + bias.double()
    assert_near(stream[:outputs], before[:outputs].double() + product.bfloat16().double())
    assert torch.equal(stream[outputs:], before[outputs:])


def test_a_gated_network(source: Source) -> None:
    gate_up, down = source.weight(2 * INNER, HIDDEN), source.weight(HIDDEN, INNER)
    x = torch.randn(HIDDEN).bfloat16()
    inner, out = torch.full((INNER + 8,), 7.0).bfloat16(), torch.full((HIDDEN + 8,), 7.0).bfloat16()
    launch(
        source.library, "gated_product", (-(-INNER // 8), 1), THREADS, x, gate_up.codes,
        gate_up.scales, inner,
    )  # fmt: skip
    gate, up = (gate_up.widened().double() @ x.double()).bfloat16().double().chunk(2)
    wanted = torch.nn.functional.silu(gate) * up
    error = (inner[:INNER].double() - wanted).abs() / wanted.abs().clamp(min=0.05)
    assert error.max() < 2**-6, "three roundings"
    assert (inner[INNER:] == 7).all()
    launch(
        source.library, "down_product", (-(-HIDDEN // 8), 1), THREADS, inner, down.codes,
        down.scales, out,
    )  # fmt: skip
    assert_near(out[:HIDDEN], down.widened().double() @ inner[:INNER].double())
    assert (out[HIDDEN:] == 7).all()


@pytest.mark.parametrize("inputs", [70, 320, 4099])
def test_a_product_of_any_shape_and_a_few_tokens(source: Source, inputs: int) -> None:
    outputs, tokens = 37, 3
    weight, x = source.weight(outputs, inputs), torch.randn(tokens, inputs).bfloat16()
    bias, out = torch.randn(outputs).bfloat16(), torch.zeros(tokens, outputs).bfloat16()
    launch(
        source.library, "product", (-(-outputs // 16), tokens), THREADS, x, weight.codes,
        weight.scales, bias, out, outputs, inputs,
    )  # fmt: skip
    assert_near(out, x.double() @ weight.widened().double().T + bias.double())


@pytest.mark.parametrize("tiles", TILES)
@pytest.mark.parametrize(("rows", "inputs"), [(3, 72), (16, 320), (21, 4168)])
def test_a_product_with_some_rows(source: Source, rows: int, inputs: int, tiles: int) -> None:
    outputs = 37
    weight, x = source.weight(outputs, inputs), torch.randn(rows, inputs).bfloat16()
    bias, out = torch.randn(outputs).bfloat16(), torch.full((rows + 1, outputs), 7.0).bfloat16()
    launch(
        source.by_tiles[tiles], "rows_product", (-(-outputs // (8 * tiles)), -(-rows // 16)),
        THREADS, x, weight.codes, weight.scales, bias, out, rows, outputs, inputs,
    )  # fmt: skip
    wanted = x.double() @ weight.widened(torch.bfloat16).double().T + bias.double()
    assert_near(out[:rows], wanted)
    assert (out[rows:] == 7).all()


@pytest.mark.parametrize("inputs", [70, 320])
def test_rows_are_widened_to_the_bit(source: Source, inputs: int) -> None:
    weight, out = source.weight(37, inputs), torch.zeros(37, inputs).bfloat16()
    blocks = -(-37 * -(-inputs // 8) // THREADS)
    launch(
        source.library, "widen", (blocks, 1), THREADS, weight.codes, weight.scales, out, 37, inputs
    )
    assert torch.equal(out, weight.widened(torch.bfloat16))


# Does the kernel of the best tokens find what argmax finds? Its source is compiled for the CPU.

KERNEL = "best_tokens"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder: Path = tmp_path_factory.mktemp("best")
    return compiled("best", {}, [KERNEL], folder)


def check(library: ctypes.CDLL, case: Case, parts: int) -> None:
    rows, vocabulary = case.logits.shape
    found, ended = torch.zeros(rows, dtype=torch.int64), torch.zeros(rows, dtype=torch.int32)
    for _ in range(2):  # again with what the first has left
        tokens = torch.full((rows,), -7, dtype=torch.int64)
        launch(library, KERNEL, (parts, rows), 256, case.logits, vocabulary, found, ended, tokens)
        assert tokens.tolist() == case.tokens
        assert not found.any()
        assert not ended.any()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("parts", [1, 5])
def test_values_that_are_not_numbers_are_reported(
    library: ctypes.CDLL, name: str, parts: int
) -> None:
    check(library, CASES[name], parts)


@pytest.mark.parametrize("vocabulary", [7, 257, 5003])
def test_the_first_of_the_largest_is_found(library: ctypes.CDLL, vocabulary: int) -> None:
    check(library, random_case(4, vocabulary), 3)


# Do the CUDA kernels of shared experts in bf16 compute what the reference does? Their source is
# compiled for the CPU.


@pytest.mark.parametrize("activation", ["silu", long("gelu"), long("gelu_pytorch_tanh")])
def test_a_gated_network_in_bf16(activation: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    shape = ExpertShape(HIDDEN, INNER, activation)
    block = (torch.randn(shape.values) * 0.03).bfloat16()
    x = torch.randn(1, HIDDEN).bfloat16()
    sizes = {
        "HIDDEN": HIDDEN,
        "INNER": INNER,
        "ACTIVATION": activations.number(shape),
    }
    library = compiled("shared", sizes, ["gated_product", "down_product"], tmp_path)
    gate_up, down = block_views(shape, block)
    inner, out = (
        torch.full((INNER + 8,), 7.0).bfloat16(),
        torch.full((HIDDEN + 8,), 7.0).bfloat16(),
    )
    launch(library, "gated_product", (-(-INNER // 8), 1), 256, x, gate_up, inner)
    launch(library, "down_product", (-(-HIDDEN // 8), 1), 256, inner, down, out)
    wanted = feed_forward(shape, block.float(), x.float())[0]
    error = (out[:HIDDEN].float() - wanted).norm() / wanted.norm()
    assert error < 0.01
    assert (inner[INNER:] == 7).all()
    assert (out[HIDDEN:] == 7).all()
