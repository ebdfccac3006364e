"""A small valid GGUF file for the fuzzer, in the pieces it is written of: every count, length, key,
value type, size and offset is one, so that each can be replaced by itself."""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

HIDDEN, HEADS, EXPERTS, WIDTH = 32, 2, 2, 32
_U32, _F32, _BOOL, _STRING, _ARRAY, _I32 = 4, 6, 7, 8, 9, 5
_FLOAT, _Q8_0 = 0, 8  # tensor types
_ALIGNMENT = 32
_TOKENS = ["<s>", "</s>", "<unk>", "a", "b", "ab", "Ġ", "Ġa", "▁", "▁a"]
_KINDS = [3, 3, 2, 1, 1, 1, 1, 1, 1, 1]

Pieces = list[bytes]
Key = tuple[str, int, Any]


@cache
def gguf_pieces(tokenizer: str) -> tuple[bytes, ...]:
    """A model of qwen3moe with a tokenizer of this kind: gpt2 or llama."""
    keys, tensors = _keys(tokenizer), _tensors()
    pieces = [b"GGUF", struct.pack("<I", 3), _u64(len(tensors)), _u64(len(keys))]
    for name, kind, value in keys:
        pieces += [*_text(name), struct.pack("<I", kind), *_value(kind, value)]
    offset = 0
    for name, sizes, kind in tensors:
        dimensions = [_u64(size) for size in sizes]
        pieces += [*_text(name), struct.pack("<I", len(sizes)), *dimensions]
        pieces += [struct.pack("<I", kind), _u64(offset)]
        offset += _padded(_bytes(sizes, kind))
    length = sum(map(len, pieces))
    pieces += [bytes(_padded(length) - length), bytes(offset)]
    return tuple(pieces)


def _keys(tokenizer: str) -> list[Key]:
    shapes = {
        "block_count": 1,
        "context_length": 64,
        "embedding_length": HIDDEN,
        "feed_forward_length": 48,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 1,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "expert_count": EXPERTS,
        "expert_used_count": 1,
        "expert_feed_forward_length": WIDTH,
    }
    return [
        ("general.architecture", _STRING, "qwen3moe"),
        ("general.alignment", _U32, _ALIGNMENT),
        *((f"qwen3moe.{name}", _U32, value) for name, value in shapes.items()),
        ("qwen3moe.attention.layer_norm_rms_epsilon", _F32, 1e-6),
        ("qwen3moe.rope.freq_base", _F32, 1e6),
        ("qwen3moe.rope.scaling.type", _STRING, "yarn"),
        ("qwen3moe.rope.scaling.factor", _F32, 2.0),
        ("qwen3moe.rope.scaling.original_context_length", _U32, 32),
        ("tokenizer.ggml.model", _STRING, tokenizer),
        ("tokenizer.ggml.pre", _STRING, "qwen2"),
        ("tokenizer.ggml.tokens", _ARRAY, (_STRING, _TOKENS)),
        ("tokenizer.ggml.token_type", _ARRAY, (_I32, _KINDS)),
        ("tokenizer.ggml.scores", _ARRAY, (_F32, [-float(i) for i in range(len(_TOKENS))])),
        ("tokenizer.ggml.merges", _ARRAY, (_STRING, ["a b", "Ġ a"])),
        ("tokenizer.ggml.bos_token_id", _U32, 0),
        ("tokenizer.ggml.eos_token_id", _U32, 1),
        ("tokenizer.ggml.add_bos_token", _BOOL, 1),
        ("tokenizer.chat_template", _STRING, "{{ messages }}"),
    ]


def _tensors() -> list[tuple[str, list[int], int]]:
    """Sizes as the format lists them: that of a row first."""
    head = HIDDEN // HEADS
    return [
        ("token_embd.weight", [HIDDEN, len(_TOKENS)], _Q8_0),
        ("output_norm.weight", [HIDDEN], _FLOAT),
        ("blk.0.attn_norm.weight", [HIDDEN], _FLOAT),
        ("blk.0.attn_q.weight", [HIDDEN, HIDDEN], _Q8_0),
        ("blk.0.attn_k.weight", [HIDDEN, head], _Q8_0),
        ("blk.0.attn_v.weight", [HIDDEN, head], _Q8_0),
        ("blk.0.attn_output.weight", [HIDDEN, HIDDEN], _Q8_0),
        ("blk.0.attn_q_norm.weight", [head], _FLOAT),
        ("blk.0.attn_k_norm.weight", [head], _FLOAT),
        ("blk.0.ffn_norm.weight", [HIDDEN], _FLOAT),
        ("blk.0.ffn_gate_inp.weight", [HIDDEN, EXPERTS], _FLOAT),
        ("blk.0.ffn_gate_exps.weight", [HIDDEN, WIDTH, EXPERTS], _Q8_0),
        ("blk.0.ffn_up_exps.weight", [HIDDEN, WIDTH, EXPERTS], _Q8_0),
        ("blk.0.ffn_down_exps.weight", [WIDTH, HIDDEN, EXPERTS], _Q8_0),
    ]


def _value(kind: int, value: Any) -> Pieces:
    if kind == _STRING:
        return _text(value)
    if kind == _ARRAY:
        inner, values = value
        each = [piece for item in values for piece in _value(inner, item)]
        return [struct.pack("<I", inner), _u64(len(values)), *each]
    return [struct.pack("<" + {_U32: "I", _F32: "f", _BOOL: "B", _I32: "i"}[kind], value)]


def _text(content: str) -> Pieces:
    encoded = content.encode()
    return [_u64(len(encoded)), encoded]


def _u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def _bytes(sizes: list[int], kind: int) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count * 4 if kind == _FLOAT else count // 32 * 34


def _padded(length: int) -> int:
    return -(-length // _ALIGNMENT) * _ALIGNMENT
