"""Small valid files of every kind that Moesaic reads: what the fuzzer begins with."""

from __future__ import annotations

import io
import json
import tempfile
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from moesaic.model_info.packed.header import PackedHeader
from moesaic.workloads.block import DECODE, RoutingBlock
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.synthetic.calibration import GPT_OSS, load_calibration
from moesaic.workloads.writer import write_trace

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
}
_YARN = {"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": 32}
_CONFIGS: tuple[dict[str, Any], ...] = (
    {"model_type": "mixtral", "num_local_experts": 8, "rope_theta": 1e6, "sliding_window": None},
    {
        "model_type": "qwen3_moe",
        "head_dim": 16,
        "num_experts": 8,
        "moe_intermediate_size": 24,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [0],
        "norm_topk_prob": True,
        "attention_bias": False,
        "rope_theta": 1e6,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0},
    },
    {
        "model_type": "deepseek_v2",
        "num_key_value_heads": 4,
        "attention_bias": False,
        "first_k_dense_replace": 1,
        "kv_lora_rank": 32,
        "moe_intermediate_size": 24,
        "moe_layer_freq": 1,
        "n_routed_experts": 16,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "q_lora_rank": None,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 16,
        "topk_method": "group_limited_greedy",
        "n_group": 4,
        "topk_group": 2,
        "routed_scaling_factor": 1.0,
        "rope_theta": 10000,
        "rope_scaling": _YARN,
    },
    {
        "model_type": "glm4_moe",
        "head_dim": 16,
        "attention_bias": False,
        "use_qk_norm": True,
        "partial_rotary_factor": 0.5,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 24,
        "n_routed_experts": 16,
        "n_shared_experts": 1,
        "norm_topk_prob": True,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "rope_theta": 10000.0,
    },
    {
        "model_type": "gpt_oss",
        "head_dim": 16,
        "attention_bias": True,
        "num_local_experts": 8,
        "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "swiglu_limit": 7.0,
        "rope_theta": 150000,
        "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False},
    },
    {
        "model_type": "granitemoe",
        "attention_bias": False,
        "attention_multiplier": 0.1,
        "embedding_multiplier": 12.0,
        "logits_scaling": 6.0,
        "num_local_experts": 8,
        "residual_multiplier": 0.2,
        "rope_theta": 10000,
    },
)


def configs() -> tuple[dict[str, Any], ...]:
    return tuple(_COMMON | each for each in _CONFIGS)


def packed_header() -> dict[str, Any]:
    made = PackedHeader(
        layout="rows-1",
        dtype="int4",
        kernel="reference",
        shape={"hidden": 64, "intermediate": 24, "activation": "silu"},
        layers=3,
        experts=8,
        block_bytes=2880,
        dense_bytes=100_000,
        dense_digest="0" * 64,
        source="small",
        fingerprint="1" * 64,
        made_by="0.1.0",
        checksums=(1, 2, 3),
        others={"model.safetensors": 4, "config.json": 5},
    )
    return asdict(made)


def trace_header() -> TraceHeader:
    return TraceHeader(
        model="tiny",
        num_layers=2,
        num_experts=4,
        top_k=2,
        ranks=2,
        has_weights=True,
        source="an example",
        metadata={"note": "for fuzzing", "domains": ["a", "b"]},
    )


def trace_block() -> RoutingBlock:
    count = 5
    return RoutingBlock(
        np.zeros(count, np.uint32),
        np.arange(count, dtype=np.uint32),
        np.full(count, DECODE, np.uint8),
        np.tile(np.array([0, 3], np.uint8), (count, 2, 1)),
        np.full((count, 2, 2), 0.5, np.float16),
    )


@cache
def trace() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.moet"
        write_trace(path, trace_header(), [trace_block()])
        return path.read_bytes()


@cache
def npz() -> bytes:
    stream = io.BytesIO()
    np.savez(
        stream,
        experts=np.tile(np.array([0, 3], np.uint8), (6, 2, 1)),
        weights_u8=np.full((6, 2, 2), 127, np.uint8),
        doc_start=np.array([0, 3, 6]),
        domain=np.array(["a", "b"]),
    )
    return stream.getvalue()


def shard_header() -> tuple[dict[str, Any], bytes]:
    """The table of two tensors [2, 3], and their bytes."""
    fields: dict[str, Any] = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "model.layers.0.b": {"dtype": "F32", "shape": [2, 3], "data_offsets": [24, 48]},
    }
    return fields, bytes(48)


@cache
def tokenizer() -> dict[str, dict[str, Any]]:
    """The files of a model's directory, by name."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=60, special_tokens=["<s>", "</s>"], show_progress=False
    )
    made.train_from_iterator(["a word and another word, é"], trainer)
    token = {"content": "<s>", "special": True, "lstrip": False, "rstrip": False}
    return {
        "tokenizer.json": json.loads(made.to_str()),
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "added_tokens_decoder": {"0": token},
            "additional_special_tokens": ["<x>"],
            "chat_template": [{"name": "default", "template": "{{ messages }}"}],
        },
        "generation_config.json": {"eos_token_id": [1, 0], "do_sample": True},
    }


def template() -> str:
    return (
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[{{ m.content | trim }}]"
        "{% else %}{{ m.content ~ '!' }}{% endif %}{% endfor %}{{ messages | tojson }}"
    )


def calibration() -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(load_calibration(GPT_OSS).to_json())
    return fields
