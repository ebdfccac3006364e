"""Are the planned sizes those that are really allocated?"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from planned_models import GROUPED, KINDS, LATENT, WINDOWED, architecture

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.routing import ExpertId
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.memory.sizes import Sizes
from moesaic.kernels.attended import Attended, Scores
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.dtypes import torch_dtype
from moesaic.kernels.instruction_sets import ISA_NUMBERS, REFERENCE, choose
from moesaic.kernels.quantized_linear import DenseQuantizer
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.model_info.expert_block import STRIPS
from moesaic.model_info.expert_shape import ExpertShape
from moesaic.model_info.expert_workspace import Heads, attention_workspace, native_workspace
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.attentions.sequence_attention import attend_sequences
from moesaic.models.configs.moe_names import plain_names
from moesaic.models.decoder_builder import DecoderBuilder
from moesaic.models.experts.expert_service import ResidentExperts
from moesaic.models.synthetic_model import random_expert, synthetic_decoder
from moesaic.models.token_batch import Segment

pytestmark = pytest.mark.without_native

torch.set_num_threads(1)


def sizes(spec: ModelSpec, **fields: Any) -> Sizes:
    return Sizes.of(spec, EngineSettings(**fields))


def store_of(spec: ModelSpec, dtype: str) -> ExpertStore:
    sizes = (spec.hidden_size, spec.expert_intermediate)
    kernel = make_kernel(ExpertShape(*sizes, bias=spec.expert_bias), dtype)
    return ExpertStore(kernel, spec.num_moe_layers, spec.num_experts)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "int8", "int4"])
@pytest.mark.parametrize("width", [256, 200, 33, 7])  # not full: a row's last group, byte, line
@pytest.mark.parametrize("bias", [False, True])
def test_the_store_takes_what_was_planned(dtype: str, width: int, bias: bool) -> None:
    spec = replace(GROUPED, expert_intermediate=width, hidden_size=width + 3, expert_bias=bias)
    elsewhere = "bf16" if dtype.startswith("int") else dtype
    planned = sizes(spec, dtype=elsewhere, expert_dtype=dtype)
    assert planned.store == store_of(spec, dtype).bytes
    assert planned.block == store_of(spec, dtype).kernel.block_bytes


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec.name)
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("kv_dtype", ["auto", "bf16", "int8"])
def test_the_kv_cache_takes_what_was_planned(spec: ModelSpec, dtype: str, kv_dtype: str) -> None:
    planned = sizes(spec, dtype=dtype, max_sequences=3, max_step_tokens=5, kv_dtype=kv_dtype)
    cache = BlockCache(spec, 3, 50, torch_dtype(dtype), step_tokens=5, kv_dtype=kv_dtype)
    assert planned.kv_cache(50) + planned.states == cache.nbytes
    assert planned.kv_block == sum(part[:, 0].nbytes for part in cache.parts)


def test_layers_with_a_window_take_no_more_for_longer_sequences() -> None:
    """Of 3 layers one sees everything: only its share grows."""
    planned = sizes(WINDOWED, dtype="fp32", max_sequences=1, max_step_tokens=16)
    a_token = 4 * WINDOWED.kv_values_per_token
    assert planned.kv_cache(4096) - planned.kv_cache(2048) == 2048 * a_token


class CountedTensors:
    """Stands in for a checkpoint: knows how much was read from it, vectors aside."""

    def __init__(self) -> None:
        self.values = 0

    def tensor(self, name: str, *shape: int, dtype: Any = None) -> Any:
        self.values += math.prod(shape) if len(shape) > 1 else 0
        return torch.empty(shape, device="meta")

    def empty(self, values: int) -> Any:
        return torch.empty(values, device="meta")


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec.name)
def test_dense_weights_are_all_but_norms_and_biases(spec: ModelSpec) -> None:
    source = CountedTensors()
    DecoderBuilder(architecture(spec), source, plain_names).build()
    assert sizes(spec, dtype="fp32").dense // 4 == source.values


def test_the_gate_bank_takes_what_was_planned() -> None:
    bank = synthetic_decoder(architecture(LATENT), "bf16").gate_bank()
    assert sizes(LATENT, dtype="bf16").gate_bank == bank._gates.nbytes


@pytest.mark.parametrize("dtype", ["fp32", "int8", "int4"])
@pytest.mark.parametrize("inner", [192, 9000])  # 9000: unpacked in several pieces
def test_kernels_get_the_workspace_they_ask_for(dtype: str, inner: int) -> None:
    spec = replace(GROUPED, expert_intermediate=inner)
    shape = ExpertShape(spec.hidden_size, inner)
    planned = sizes(spec, dtype="fp32", expert_dtype=dtype)
    in_torch = make_kernel(shape, dtype, "reference").workspace(100)
    assert planned.torch_workspace(100) == in_torch
    assert planned.kernel_workspace(100) >= in_torch


@pytest.mark.skipif(choose() == REFERENCE, reason="needs the native kernels")
@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize(("hidden", "inner"), [(64, 32), (131, 77), (2048, 768)])
@pytest.mark.parametrize(("tokens", "top_k"), [(1, 8), (100, 2), (200, 8), (4096, 8)])
def test_native_kernels_ask_for_what_is_planned(
    dtype: str, hidden: int, inner: int, tokens: int, top_k: int
) -> None:
    from moesaic.kernels.native import NativeKernel

    kernel = make_kernel(ExpertShape(hidden, inner), dtype)
    assert isinstance(kernel, NativeKernel)
    planned = native_workspace(dtype, hidden, inner, tokens, top_k, threads=1)
    assert kernel.workspace(tokens, top_k) == planned


@pytest.mark.skipif(choose() == REFERENCE, reason="needs the native kernels")
@pytest.mark.parametrize(
    "heads", [Heads(4, 4, 32, 64), Heads(6, 2, 64, 32), Heads(17, 1, 96, 96), Heads(2, 2, 24, 32)]
)
@pytest.mark.parametrize("tokens", [20, 600])
def test_attention_of_prompts_keeps_what_is_planned(heads: Heads, tokens: int) -> None:
    """Of many sequences: then items are as large as they get."""
    from moesaic.kernels import _native
    from moesaic.kernels.native_attention import NativeAttention

    native, sequences = NativeAttention(_native.Pool([-1], 0), ISA_NUMBERS[choose()]), 8
    queries = torch.zeros(sequences * tokens, heads.queries, heads.width, dtype=torch.bfloat16)
    keys, values = (
        torch.zeros(tokens, heads.keys, width, dtype=torch.bfloat16)
        for width in (heads.width, heads.values)
    )
    many = [Attended(slice(n * tokens, (n + 1) * tokens), keys, values) for n in range(sequences)]
    attend_sequences(queries, many, Scores(1.0), native)
    assert native.runner.attention_bytes() == attention_workspace(heads, tokens, workers=2)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most that torch held at once, beyond what it held before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    events = profile.profiler.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        held += change.nbytes()
        peak = max(peak, held)
    return peak


@pytest.mark.parametrize("spec", KINDS, ids=lambda spec: spec.name)
@pytest.mark.parametrize(("dtype", "expert_dtype"), [("bf16", "bf16"), ("fp32", "int4")])
def test_a_step_needs_no_more_workspace_than_planned(
    spec: ModelSpec, dtype: str, expert_dtype: str
) -> None:
    """The first step of a prompt, and one at the end of a long sequence."""
    settings = EngineSettings(
        dtype=dtype, expert_dtype=expert_dtype, max_step_tokens=256, max_sequences=1
    )
    planned = replace(Sizes.of(spec, settings), packed=None)  # as the decoder here has them
    short, long = step_peaks(spec, planned)
    assert short <= planned.workspace(256) <= 3 * short
    assert long <= planned.workspace(1024) <= 3 * long


@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_nor_where_an_accelerator_has_dense_weights_in_integers(dtype: str) -> None:
    """Widened a piece at a time, which is counted: here it is most of all."""
    spec = replace(GROUPED, vocab_size=40_000)
    settings = EngineSettings(
        dtype=dtype, dense_dtype="int4", accelerator="emulated", max_step_tokens=256,
        max_sequences=1,
    )  # fmt: skip
    planned = Sizes.of(spec, settings)
    assert planned.packed is not None
    short, _ = step_peaks(spec, planned, DenseQuantizer(planned.packed))
    assert short <= planned.workspace(256) <= 3 * short


def step_peaks(
    spec: ModelSpec, planned: Sizes, dense: DenseQuantizer | None = None
) -> tuple[int, int]:
    """Bytes that torch and the kernel take for the first 256 tokens, and for the fourth."""
    network = architecture(spec)
    decoder = synthetic_decoder(network, planned.dtype, dense=dense)
    kernel = make_kernel(network.expert_shape, planned.expert_dtype)
    experts = ResidentExperts(kernel, spec.num_moe_layers, spec.num_experts)
    for number in range(spec.num_expert_blocks):
        which = ExpertId(*divmod(number, spec.num_experts))
        experts.put(which, random_expert(network.expert_shape))
    cache, tokens = BlockCache(spec, 1, 1024, decoder.dtype), torch.arange(256)

    def step() -> None:
        hidden = decoder.forward(tokens, [Segment(0, 256)], cache, experts)
        decoder.logits(hidden[-1:])

    short = peak_bytes(step)
    step()
    step()
    shape, unseen = network.expert_shape, 0
    if kernel.layout == STRIPS:  # native: what it keeps is its own
        sizes = (shape.hidden, shape.intermediate, 256, spec.top_k)
        unseen = native_workspace(planned.expert_dtype, *sizes, threads=1)
    return short + unseen, peak_bytes(step) + unseen


def test_auto_is_as_published() -> None:
    def chosen(native: str, **fields: str) -> tuple[str, str]:
        found = sizes(replace(GROUPED, native_dtype=native), **fields)
        return found.dtype, found.expert_dtype

    assert chosen("bf16") == ("bf16", "bf16")
    assert chosen("fp32") == ("fp32", "fp32")
    assert chosen("int8") == ("bf16", "int8"), "attention is not computed in integers"
    assert chosen("bf16", dtype="fp16") == ("fp16", "fp16")
    assert chosen("bf16", expert_dtype="int4") == ("bf16", "int4")


def test_experts_in_another_floating_precision_are_refused() -> None:
    with pytest.raises(ImpossibleSetting, match="--expert-dtype bf16, int8 or int4, or --dtype fp"):
        sizes(GROUPED, expert_dtype="fp32")
