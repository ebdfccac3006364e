"""Writes a GGUF file of random weights in a model's shape, for measuring llama.cpp: what is
multiplied does not change the time. Needs the `gguf` package, never its own quantisation."""

from __future__ import annotations

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.files import naming_full_disk
from moesaic.core.units import GB
from moesaic.models.architecture import Architecture

# Our precision of experts -> type of all matrices in the file: bytes per block, weights per block.
TYPES = {"fp32": "F32", "fp16": "F16", "bf16": "BF16", "int8": "Q8_0", "int4": "Q4_0"}
_BLOCKS = {"F32": (4, 1), "F16": (2, 1), "BF16": (2, 1), "Q8_0": (34, 32), "Q4_0": (18, 32)}
# Hugging Face's model_type -> llama.cpp's name of the architecture.
ARCHITECTURES = {"qwen3_moe": "qwen3moe", "olmoe": "olmoe", "mixtral": "llama"}
_SEED = 0


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
    widths = (spec.hidden_size, spec.expert_intermediate, spec.num_heads * spec.head_dim)
    per_block = _BLOCKS[TYPES[expert_dtype]][1]
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
    spec, (size, weights) = architecture.spec, _BLOCKS[TYPES[expert_dtype]]
    layer = spec.attention_params + spec.num_experts * spec.expert_params
    matrices = 2 * spec.head_params + spec.num_layers * layer
    return matrices // weights * size + 4 * spec.num_layers * spec.router_params


def write_random_gguf(architecture: Architecture, expert_dtype: str, path: Path) -> None:
    from gguf import GGMLQuantizationType, GGUFWriter

    writer = GGUFWriter(path, ARCHITECTURES[architecture.spec.family])
    kind = TYPES[expert_dtype]
    _describe(writer, architecture)
    _Tensors(writer, kind, GGMLQuantizationType[kind]).add_all(architecture)
    with naming_full_disk(path):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file(progress=False)
        writer.close()


def _describe(writer: Any, architecture: Architecture) -> None:
    spec = architecture.spec
    writer.add_block_count(spec.num_layers)
    writer.add_context_length(spec.max_context or 8192)
    writer.add_embedding_length(spec.hidden_size)
    writer.add_feed_forward_length(spec.dense_intermediate or spec.expert_intermediate)
    writer.add_head_count(spec.num_heads)
    writer.add_head_count_kv(spec.num_kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_value_length(spec.head_dim)
    writer.add_rope_dimension_count(architecture.rope.dim)
    writer.add_rope_freq_base(architecture.rope.theta)
    writer.add_layer_norm_rms_eps(architecture.norm_eps)
    writer.add_expert_count(spec.num_experts)
    writer.add_expert_used_count(spec.top_k)
    writer.add_expert_feed_forward_length(spec.expert_intermediate)
    writer.add_vocab_size(spec.vocab_size)
    writer.add_tokenizer_model("no_vocab")


class _Tensors:
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
            self._layer(architecture, f"blk.{number}.", router)

    def _layer(self, architecture: Architecture, name: str, router: NDArray[np.float32]) -> None:
        spec = architecture.spec
        hidden, inner, head = spec.hidden_size, spec.expert_intermediate, spec.head_dim
        queries, keys = spec.num_heads * head, spec.num_kv_heads * head
        self._norm(f"{name}attn_norm.weight", hidden)
        self._norm(f"{name}ffn_norm.weight", hidden)
        rule = architecture.attention.qk_norm
        if rule != "none":
            self._norm(f"{name}attn_q_norm.weight", head if rule == "head" else queries)
            self._norm(f"{name}attn_k_norm.weight", head if rule == "head" else keys)
        self._matrix(f"{name}attn_q.weight", queries, hidden)
        self._matrix(f"{name}attn_k.weight", keys, hidden)
        self._matrix(f"{name}attn_v.weight", keys, hidden)
        self._matrix(f"{name}attn_output.weight", hidden, queries)
        self._writer.add_tensor(f"{name}ffn_gate_inp.weight", router)
        self._matrix(f"{name}ffn_gate_exps.weight", spec.num_experts, inner, hidden)
        self._matrix(f"{name}ffn_up_exps.weight", spec.num_experts, inner, hidden)
        self._matrix(f"{name}ffn_down_exps.weight", spec.num_experts, hidden, inner)

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
    size, weights = _BLOCKS[kind]
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
