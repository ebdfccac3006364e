"""Writes a GGUF file of random weights in a model's shape, for measuring llama.cpp: what is
multiplied does not change the time. Needs the `gguf` package, never its own quantisation."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.files import naming_full_disk
from moesaic.core.units import GB
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.network import GroupedAttentionSpec
from moesaic.models.configs.architecture import Architecture

# Our precision of experts -> type of all matrices in the file: bytes per block, weights per block.
TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
# Hugging Face's model_type -> llama.cpp's name of the architecture.
ARCHITECTURES = {
    "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe",
    "mixtral": "llama",
    "deepseek_v2": "deepseek2",
}
_ONE_WIDTH = ("olmoe", "mixtral")  # whose files have one width for all networks
# It knows by their number of layers that queries are not compressed.
_LITE_LAYERS = (26, 27)


def check_writable(architecture: Architecture, expert_dtype: str, folder: Path) -> None:
    """Refuses what could not be written, before anything is."""
    spec = architecture.spec
    if find_spec("gguf") is None:
        raise ImpossibleSetting(
            "a model for llama.cpp is written with the package gguf, which is not installed: "
            "pip install gguf"
        )
    if spec.family not in ARCHITECTURES:
        raise ImpossibleSetting(
            f"{spec.name} is a {spec.family}; for llama.cpp models can be written of the families "
            f"{', '.join(ARCHITECTURES)}"
        )
    if spec.family == "olmoe" and spec.num_kv_heads != spec.num_heads:
        raise ImpossibleSetting(
            f"{spec.name} shares keys between heads ({spec.num_kv_heads} for {spec.num_heads}), "
            "which llama.cpp's OLMoE does not"
        )
    latent = spec.latent_attention
    if latent is not None and (latent.q_lora_rank or spec.num_layers not in _LITE_LAYERS):
        raise ImpossibleSetting(
            f"{spec.name} has {spec.num_layers} layers; llama.cpp takes a DeepSeek-V2 with "
            f"{' or '.join(map(str, _LITE_LAYERS))} layers for one whose queries are not "
            "compressed, which is what can be written: leave out --layers"
        )
    widths = (spec.hidden_size, spec.expert_intermediate, spec.num_heads * spec.head_dim)
    per_block = BLOCKS[TYPES[expert_dtype]][1]
    if any(width % per_block for width in widths):
        raise ImpossibleSetting(
            f"{TYPES[expert_dtype]} keeps blocks of {per_block} weights, but {spec.name} has rows "
            f"of {', '.join(map(str, widths))}: compare in bf16"
        )
    needed, free = file_bytes(architecture, expert_dtype), shutil.disk_usage(folder).free
    if needed > free:
        raise ImpossibleSetting(
            f"a model for llama.cpp of {needed / GB:.1f} GB does not fit in {folder}, where "
            f"{free / GB:.1f} GB are free: use fewer --layers, or set TMPDIR to a larger disk"
        )


def file_bytes(architecture: Architecture, expert_dtype: str) -> int:
    """About."""
    spec, (size, weights) = architecture.spec, BLOCKS[TYPES[expert_dtype]]
    routed = spec.num_experts * spec.expert_params + spec.shared_params
    dense = (spec.num_layers - spec.num_moe_layers) * spec.dense_ffn_params
    layers = spec.num_layers * spec.attention_params + spec.num_moe_layers * routed + dense
    matrices = 2 * spec.head_params + layers
    return matrices // weights * size + 4 * spec.num_layers * spec.router_params


def write_random_gguf(
    architecture: Architecture,
    expert_dtype: str,
    path: Path,
    add_tokenizer: Callable[[Any], object] = lambda writer: writer.add_tokenizer_model("no_vocab"),
) -> None:
    """What is measured by token ids alone needs no tokenizer."""
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, ARCHITECTURES[architecture.spec.family])
    kind = TYPES[expert_dtype]
    _describe(writer, architecture)
    add_tokenizer(writer)
    RandomTensors(writer, kind, GGMLQuantizationType[kind]).add_all(architecture)
    with naming_full_disk(path):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file(progress=False)
        writer.close()


def _describe(writer: Any, architecture: Architecture) -> None:
    spec, network = architecture.spec, architecture.network
    (rope,) = network.ropes
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.max_context or 8192)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.dense_intermediate or spec.expert_intermediate)
    writer.add_head_count(spec.num_heads)
    _describe_heads(writer, architecture)
    writer.add_rope_dimension_count(rope.dim)
    writer.add_rope_freq_base(rope.theta)
    writer.add_layer_norm_rms_eps(network.norm.eps)
    writer.add_expert_count(spec.num_experts)
    writer.add_expert_used_count(spec.top_k)
    if spec.family not in _ONE_WIDTH:
        writer.add_expert_feed_forward_length(spec.expert_intermediate)
    writer.add_vocab_size(spec.vocab_size)


def _describe_heads(writer: Any, architecture: Architecture) -> None:
    """Latent attention is one key head that all query heads share."""
    spec, latent = architecture.spec, architecture.spec.latent_attention
    if latent is None:
        writer.add_head_count_kv(spec.num_kv_heads)
        writer.add_key_length(spec.head_dim)
        writer.add_value_length(spec.head_dim)
        return
    writer.add_head_count_kv(1)
    writer.add_key_length(latent.kv_lora_rank + latent.qk_rope_head_dim)
    writer.add_value_length(latent.kv_lora_rank)
    writer.add_key_length_mla(latent.qk_nope_head_dim + latent.qk_rope_head_dim)
    writer.add_value_length_mla(latent.v_head_dim)
    writer.add_kv_lora_rank(latent.kv_lora_rank)
    writer.add_leading_dense_block_count(spec.moe_layers[0])
    writer.add_expert_shared_count(spec.shared_intermediate // spec.expert_intermediate)
    writer.add_expert_weights_scale(1.0)


# The tensors of a GGUF file of random weights, by the names that llama.cpp reads them by.

# Type of a matrix -> bytes per block, weights per block.
BLOCKS = {"F32": (4, 1), "F16": (2, 1), "BF16": (2, 1), "Q8_0": (34, 32), "Q4_0": (18, 32)}
_SEED = 0


class RandomTensors:
    """Layers share their arrays: a file is larger than what is kept in memory."""

    def __init__(self, writer: Any, kind: str, number: Any) -> None:
        self._writer, self._kind, self._number = writer, kind, number
        self._random = np.random.default_rng(_SEED)
        self._made: dict[tuple[int, ...], NDArray[np.uint8]] = {}

    def add_all(self, architecture: Architecture) -> None:
        spec = architecture.spec
        hidden, vocabulary = spec.hidden_size, spec.vocab_size
        self._matrix("token_embd.weight", vocabulary, hidden)
        self._norm("output_norm.weight", hidden)
        self._matrix("output.weight", vocabulary, hidden)
        router = self._random.standard_normal((spec.num_experts, hidden), dtype=np.float32)
        for number in range(spec.num_layers):
            name = f"blk.{number}."
            self._norm(f"{name}attn_norm.weight", hidden)
            self._norm(f"{name}ffn_norm.weight", hidden)
            attention = architecture.network.layers[number].attention
            if isinstance(attention, GroupedAttentionSpec):
                self._grouped_attention(attention, name, hidden)
            else:
                self._latent_attention(spec, name)
            if number in spec.moe_layers:
                self._experts(spec, name, router)
            else:
                self._network(f"{name}ffn", "", hidden, spec.dense_intermediate)

    def _grouped_attention(self, spec: GroupedAttentionSpec, name: str, hidden: int) -> None:
        head, queries, keys = spec.head_dim, spec.query_width, spec.kv_width
        if spec.qk_norm is not None:
            by_head = spec.qk_norm.scope == "head"
            self._norm(f"{name}attn_q_norm.weight", head if by_head else queries)
            self._norm(f"{name}attn_k_norm.weight", head if by_head else keys)
        self._matrix(f"{name}attn_q.weight", queries, hidden)
        self._matrix(f"{name}attn_k.weight", keys, hidden)
        self._matrix(f"{name}attn_v.weight", keys, hidden)
        self._matrix(f"{name}attn_output.weight", hidden, queries)

    def _latent_attention(self, spec: ModelSpec, name: str) -> None:
        latent = spec.latent_attention
        assert latent is not None, "it was asked"
        hidden, heads, rank = spec.hidden_size, spec.num_heads, latent.kv_lora_rank
        plain, rotated = latent.qk_nope_head_dim, latent.qk_rope_head_dim
        values = latent.v_head_dim
        self._norm(f"{name}attn_kv_a_norm.weight", rank)
        self._matrix(f"{name}attn_q.weight", heads * (plain + rotated), hidden)
        self._matrix(f"{name}attn_kv_a_mqa.weight", rank + rotated, hidden)
        self._matrix(f"{name}attn_k_b.weight", heads, rank, plain)
        self._matrix(f"{name}attn_v_b.weight", heads, values, rank)
        self._matrix(f"{name}attn_output.weight", hidden, heads * values)

    def _experts(self, spec: ModelSpec, name: str, router: NDArray[np.float32]) -> None:
        hidden, inner = spec.hidden_size, spec.expert_intermediate
        self._writer.add_tensor(f"{name}ffn_gate_inp.weight", router)
        self._network(f"{name}ffn", "_exps", hidden, inner, spec.num_experts)
        if spec.shared_intermediate:
            self._network(f"{name}ffn", "_shexp", hidden, spec.shared_intermediate)

    def _network(self, name: str, ending: str, hidden: int, inner: int, *count: int) -> None:
        self._matrix(f"{name}_gate{ending}.weight", *count, inner, hidden)
        self._matrix(f"{name}_up{ending}.weight", *count, inner, hidden)
        self._matrix(f"{name}_down{ending}.weight", *count, hidden, inner)

    def _norm(self, name: str, width: int) -> None:
        self._writer.add_tensor(name, np.ones(width, dtype=np.float32))

    def _matrix(self, name: str, *shape: int) -> None:
        if shape not in self._made:
            self._made[shape] = random_blocks(self._random, self._kind, shape)
        self._writer.add_tensor(name, self._made[shape], raw_dtype=self._number)


def random_blocks(
    random: np.random.Generator, kind: str, shape: tuple[int, ...]
) -> NDArray[np.uint8]:
    """A matrix as the file has it: [..., bytes of a row]. Small numbers of both signs."""
    size, weights = BLOCKS[kind]
    *rows, columns = shape
    count = int(np.prod(rows)) * (columns // weights)
    if kind in ("Q8_0", "Q4_0"):  # a scale in fp16, then codes
        blocks = np.empty((count, size), dtype=np.uint8)
        scale = np.array([0.003 if kind == "Q4_0" else 0.0003], dtype=np.float16)
        blocks[:, :2] = scale.view(np.uint8)
        codes = random.integers(0, 256, size=min(count, 1 << 12) * (size - 2), dtype=np.uint8)
        blocks[:, 2:] = np.resize(codes, count * (size - 2)).reshape(count, size - 2)
    else:
        some = 0.02 * random.standard_normal(min(count, 1 << 16), dtype=np.float32)
        blocks = np.resize(_as_bytes(some, kind), (count, size))
    return blocks.reshape(*rows, columns // weights * size)


def _as_bytes(values: NDArray[np.float32], kind: str) -> NDArray[np.uint8]:
    """[values, bytes of one]"""
    if kind == "BF16":  # the upper half of an fp32 number
        return values.view(np.uint8).reshape(-1, 4)[:, 2:].copy()
    stored = values.astype(np.float16) if kind == "F16" else values
    return stored.view(np.uint8).reshape(len(values), -1)
