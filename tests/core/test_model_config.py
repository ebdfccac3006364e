"""Does a config.json give the right shapes, and a bad one an error that helps?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from moesaic.core.errors import BadConfig
from moesaic.model_info.model_config import read_model_config

MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral",
    "hidden_size": 64,
    "intermediate_size": 96,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 4,
    "num_key_value_heads": 2,
    "num_local_experts": 8,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "vocab_size": 100,
}
QWEN2: dict[str, Any] = MIXTRAL | {
    "model_type": "qwen2_moe",
    "decoder_sparse_step": 1,
    "moe_intermediate_size": 24,
    "norm_topk_prob": False,
    "num_experts": 16,
    "shared_expert_intermediate_size": 80,
}
DEEPSEEK: dict[str, Any] = MIXTRAL | {
    "model_type": "deepseek_v2",
    "first_k_dense_replace": 1,
    "kv_lora_rank": 32,
    "moe_intermediate_size": 24,
    "moe_layer_freq": 1,
    "n_routed_experts": 16,
    "n_shared_experts": 2,
    "norm_topk_prob": True,
    "q_lora_rank": None,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "scoring_func": "softmax",
    "v_head_dim": 16,
}
ABSENT = object()


def write(folder: Path, fields: dict[str, Any], **changes: Any) -> Path:
    """A config.json with some fields changed, or removed where the change is ABSENT."""
    fields = {k: v for k, v in (fields | changes).items() if v is not ABSENT}
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return path


def test_a_directory_is_read_like_its_config(tmp_path: Path) -> None:
    path = write(tmp_path, MIXTRAL)
    spec = read_model_config(tmp_path)
    assert spec == read_model_config(path)
    assert (spec.name, spec.source) == (tmp_path.name, str(path))


def test_mixtral(tmp_path: Path) -> None:
    spec = read_model_config(write(tmp_path, MIXTRAL))
    assert (spec.num_experts, spec.top_k, spec.expert_intermediate) == (8, 2, 96)
    assert spec.moe_layers == (0, 1, 2, 3)
    assert (spec.shared_intermediate, spec.dense_intermediate) == (0, 0)
    assert spec.head_dim == 64 // 4
    assert (spec.scoring, spec.normalized_topk) == ("softmax", True)


def test_gpt_oss_scores_after_choosing(tmp_path: Path) -> None:
    fields = MIXTRAL | {
        "model_type": "gpt_oss",
        "head_dim": 8,
        "quantization_config": {"quant_method": "mxfp4"},
    }
    spec = read_model_config(write(tmp_path, fields, torch_dtype=ABSENT))
    assert (spec.scoring, spec.normalized_topk) == ("softmax-after-topk", True)
    assert (spec.head_dim, spec.native_dtype) == (8, "int4")


@pytest.mark.parametrize(
    ("changes", "moe_layers"),
    [
        ({}, (0, 1, 2, 3)),
        ({"decoder_sparse_step": 2}, (1, 3)),
        ({"mlp_only_layers": [0, 3]}, (1, 2)),
        ({"decoder_sparse_step": 2, "mlp_only_layers": [1]}, (3,)),
    ],
)
def test_qwen_layers(tmp_path: Path, changes: dict[str, Any], moe_layers: tuple[int, ...]) -> None:
    spec = read_model_config(write(tmp_path, QWEN2, **changes))
    assert spec.moe_layers == moe_layers
    assert spec.dense_intermediate == (0 if len(moe_layers) == 4 else 96)


def test_qwen2_states_its_shared_width_and_qwen3_has_none(tmp_path: Path) -> None:
    assert read_model_config(write(tmp_path, QWEN2)).shared_intermediate == 80
    qwen3 = QWEN2 | {"model_type": "qwen3_moe", "head_dim": 32}
    spec = read_model_config(write(tmp_path, qwen3, num_local_experts=ABSENT))
    assert (spec.shared_intermediate, spec.head_dim) == (0, 32)


@pytest.mark.parametrize(
    ("first", "step", "moe_layers"),
    [(0, 1, (0, 1, 2, 3)), (1, 1, (1, 2, 3)), (1, 2, (2,)), (3, ABSENT, (3,))],
)
def test_deepseek_layers(
    tmp_path: Path, first: int, step: object, moe_layers: tuple[int, ...]
) -> None:
    path = write(tmp_path, DEEPSEEK, first_k_dense_replace=first, moe_layer_freq=step)
    assert read_model_config(path).moe_layers == moe_layers


def test_deepseek_attention_and_shared_experts(tmp_path: Path) -> None:
    spec = read_model_config(write(tmp_path, DEEPSEEK))
    assert spec.latent_attention is not None
    assert spec.latent_attention.q_lora_rank is None
    assert (spec.head_dim, spec.kv_values_per_token) == (24, 40)
    assert (spec.shared_intermediate, spec.dense_intermediate) == (2 * 24, 96)
    compressed = read_model_config(write(tmp_path, DEEPSEEK, q_lora_rank=48))
    assert compressed.latent_attention is not None
    assert compressed.latent_attention.q_lora_rank == 48
    assert read_model_config(write(tmp_path, DEEPSEEK, n_shared_experts=None)).shared_params == 0


def test_deepseek_scores_as_its_class_does_unless_stated(tmp_path: Path) -> None:
    """Files saved by the library do not state it: V2's class knows softmax, V3's sigmoid."""
    v3 = DEEPSEEK | {"model_type": "deepseek_v3"}
    assert read_model_config(write(tmp_path, v3)).scoring == "softmax"
    assert read_model_config(write(tmp_path, v3, scoring_func=ABSENT)).scoring == "sigmoid"
    v2 = DEEPSEEK | {"scoring_func": "sigmoid"}
    assert read_model_config(write(tmp_path, v2)).scoring == "sigmoid"
    assert read_model_config(write(tmp_path, v2, scoring_func=ABSENT)).scoring == "softmax"


def test_qwen3_experts_are_counted_under_either_name(tmp_path: Path) -> None:
    qwen3 = QWEN2 | {"model_type": "qwen3_moe", "head_dim": 16, "num_local_experts": ABSENT}
    assert read_model_config(write(tmp_path, qwen3)).num_experts == 16
    renamed = qwen3 | {"num_experts": ABSENT, "num_local_experts": 16}
    assert read_model_config(write(tmp_path, renamed)).num_experts == 16
    with pytest.raises(BadConfig, match="num_experts"):
        read_model_config(write(tmp_path, renamed, num_local_experts=ABSENT))


def test_two_names_of_one_field_must_agree(tmp_path: Path) -> None:
    qwen3 = QWEN2 | {"model_type": "qwen3_moe", "head_dim": 32}
    both = write(tmp_path, qwen3, num_experts=16, num_local_experts=16)
    assert read_model_config(both).num_experts == 16
    with pytest.raises(BadConfig, match="num_local_experts: says 8, but num_experts says 16"):
        read_model_config(write(tmp_path, qwen3))


# What DeepSeek's own layout does not need.
OPTIONAL = {"torch_dtype", "moe_layer_freq", "num_local_experts", "scoring_func"}


@pytest.mark.parametrize("field", sorted(DEEPSEEK.keys() - OPTIONAL))
def test_a_missing_field_is_named(tmp_path: Path, field: str) -> None:
    path = write(tmp_path, DEEPSEEK, **{field: ABSENT})
    with pytest.raises(BadConfig, match=field) as caught:
        read_model_config(path)
    assert caught.value.field == field
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "field", "value", "expected"),
    [
        (MIXTRAL, "hidden_size", "64", "whole number"),
        (MIXTRAL, "hidden_size", 64.0, "whole number"),
        (MIXTRAL, "num_local_experts", 0, "1 or more"),
        (MIXTRAL, "num_hidden_layers", -2, "1 or more"),
        (MIXTRAL, "num_hidden_layers", True, "whole number"),
        (MIXTRAL, "vocab_size", None, "whole number"),
        (MIXTRAL, "num_experts_per_tok", 9, "at most 8"),
        (MIXTRAL, "num_key_value_heads", 3, "divisor of 4"),
        (MIXTRAL, "tie_word_embeddings", "no", "true or false"),
        (MIXTRAL, "torch_dtype", "int3", "bfloat16, float16, float32"),
        (MIXTRAL, "quantization_config", [4], "object"),
        (QWEN2, "decoder_sparse_step", 0, "1 or more"),
        (QWEN2, "mlp_only_layers", [4], "from 0 to 3"),
        (QWEN2, "mlp_only_layers", 1, "from 0 to 3"),
        (DEEPSEEK, "scoring_func", "tanh", "softmax, sigmoid"),
        (DEEPSEEK, "n_shared_experts", -1, "0 or more"),
    ],
)
def test_a_wrong_value_is_named_with_what_was_expected(
    tmp_path: Path, fields: dict[str, Any], field: str, value: Any, expected: str
) -> None:
    with pytest.raises(BadConfig, match=expected) as caught:
        read_model_config(write(tmp_path, fields, **{field: value}))
    assert caught.value.field == field


def test_a_model_without_routed_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="none of the 4 layers"):
        read_model_config(write(tmp_path, DEEPSEEK, first_k_dense_replace=4))


def test_heads_that_do_not_divide_need_head_dim(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="head_dim"):
        read_model_config(write(tmp_path, MIXTRAL, hidden_size=66))
    assert read_model_config(write(tmp_path, MIXTRAL, hidden_size=66, head_dim=20)).head_dim == 20


@pytest.mark.parametrize("model_type", ["llama", "phimoe", "kimi_linear", ABSENT, None, 3])
def test_an_unsupported_architecture_lists_the_supported(tmp_path: Path, model_type: Any) -> None:
    path = write(tmp_path, MIXTRAL, model_type=model_type)
    with pytest.raises(BadConfig, match=r"unsupported architecture.*mixtral.*qwen3_moe"):
        read_model_config(path)


@pytest.mark.parametrize("content", ["", "{", '{"a": 1,}', "[1, 2]", "\xff\xfe"])
def test_what_is_no_json_object_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(BadConfig, match="expected"):
        read_model_config(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadConfig, match="there is none"):
        read_model_config(tmp_path / "absent.json")
    with pytest.raises(BadConfig, match=r"config\.json"):
        read_model_config(tmp_path)
