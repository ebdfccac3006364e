"""The tensors of a GGUF file of random weights, by the names that llama.cpp reads them by."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.network import GroupedAttentionSpec
from moesaic.models.configs.architecture import Architecture

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
