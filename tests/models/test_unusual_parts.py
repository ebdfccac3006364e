"""Is what only PyTorch computes named, and kept from every other kernel?"""

from __future__ import annotations

import pytest
import torch

import stock
from moesaic.cli.run import generating
from moesaic.kernels import instruction_sets
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.gpu.experts import supports
from moesaic.kernels.quantized import QuantizedKernel
from moesaic.kernels.reference import ReferenceKernel, gated
from moesaic.machines.support import ExecutorKind, refusal
from moesaic.model_info.expert_shape import ClampedSwiglu, ExpertShape
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.configs.synthetic_architecture import synthetic_architecture

pytestmark = pytest.mark.without_native

PLAIN = ExpertShape(64, 32)
_OF_GPT_OSS = (
    "attention sinks, a router with a bias, experts with biases, experts with a clamped activation"
)
UNUSUAL = {
    "biases": ExpertShape(64, 32, bias=True),
    "a clamped activation": ExpertShape(64, 32, clamped=ClampedSwiglu(1.702, 7.0)),
    "biases and a clamped activation": ExpertShape(64, 32, "silu", True, ClampedSwiglu(1.0, 2.0)),
}


@pytest.mark.parametrize("words", UNUSUAL)
def test_such_experts_are_pytorchs(words: str) -> None:
    shape = UNUSUAL[words]
    assert shape.unusual == words
    assert PLAIN.unusual is None
    assert supports(PLAIN, "bf16")
    assert not supports(shape, "bf16")
    assert isinstance(make_kernel(shape, "bf16"), ReferenceKernel)
    assert isinstance(make_kernel(shape, "int4"), QuantizedKernel)


def test_the_user_reads_which_kernel_computes_them_and_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any processor, and where no native kernels were built."""
    monkeypatch.delenv(instruction_sets.VARIABLE, raising=False)
    monkeypatch.setattr(instruction_sets, "available", lambda: ("avx512", "reference"))
    said = generating._kernel_text("auto", "bf16", "biases")
    assert said == "the PyTorch reference kernel (avx512 kernels know no experts with biases)"
    assert generating._kernel_text("auto", "bf16", None) == "native avx512 kernels"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mixtral", None),
        ("deepseek-v3", None),
        ("mixtral-windowed", "a sliding window"),
        ("granite", "a scaled embedding, scaled residuals, divided logits"),
        ("gpt-oss", f"a sliding window (layers 0, 2), {_OF_GPT_OSS}"),
    ],
)
def test_what_keeps_a_network_from_one_native_call(name: str, words: str | None) -> None:
    network = read_architecture(stock.saved(name).folder).network
    assert refusal(ExecutorKind.CPU_STEP, network) == (words and f"cpu_step lacks {words}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("granite-3.0-1b-a400m", "a scaled embedding, scaled residuals, divided logits"),
        ("gpt-oss-20b", f"a sliding window (layer 0), {_OF_GPT_OSS}"),
        ("kimi-k2", None),
    ],
)
def test_a_model_of_which_only_the_shape_is_known_is_no_easier(
    name: str, words: str | None
) -> None:
    network = synthetic_architecture(name, 2).network
    assert refusal(ExecutorKind.CAPTURED, network) == (words and f"captured lacks {words}")


def test_biases_lie_behind_the_weights_whatever_their_precision() -> None:
    shape = UNUSUAL["biases"]
    for dtype in ("fp32", "bf16", "int8", "int4"):
        plain, biased = (make_kernel(s, dtype, "reference").block_bytes for s in (PLAIN, shape))
        assert biased - plain == 4 * (2 * 32 + 64) == 512


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_clamping_hides_no_infinite_value(value: float) -> None:
    shape = UNUSUAL["a clamped activation"]
    plain = torch.zeros(1, 64)
    assert gated(shape, plain).isfinite().all()
    for at in (0, 32):  # of gate, of up
        rows = plain.clone()
        rows[0, at] = value
        assert gated(shape, rows)[0, 0].isnan()
