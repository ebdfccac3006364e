"""Small random models of the stock implementation, one per family, saved as checkpoints.

Fields are set explicitly: the classes' defaults differ from the published models. Weights are
drawn wider than the stock initialisation, and norms and biases are random too, so that a wrong
router, scale or bias shows in the logits instead of vanishing.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

torch.set_num_threads(1)  # tests run side by side, and models this small gain nothing from more
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

SHARED: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "attention_dropout": 0.0,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 32,
    "beta_slow": 1,
}
# Every setting of YaRN away from its default, and bounds that rounding would move.
TUNED_YARN = YARN | {
    "attention_factor": 1.3,
    "beta_fast": 3,
    "beta_slow": 0.4,
    "original_max_position_embeddings": 64,
    "truncate": False,
}
DEEPSEEK_YARN = YARN | {"mscale": 0.707, "mscale_all_dim": 0.9}

# Name -> (class, fields). A family may appear with several sets of quirks.
# Within what random weights reach; a stock model that does not know the field clamps at 7.
_KNOWS_LIMIT = "swiglu_limit" in transformers.GptOssConfig().to_dict()
_CLAMP = {"swiglu_limit": 0.7} if _KNOWS_LIMIT else {}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": (
        "Mixtral",
        {
            "intermediate_size": 48,
            "num_local_experts": 6,
            "num_experts_per_tok": 2,
            "sliding_window": None,
            "rope_parameters": PLAIN_ROPE | {"rope_theta": 1000000.0},
        },
    ),
    "qwen2-moe": (
        "Qwen2Moe",
        {
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 56,
            "num_experts": 10,
            "num_experts_per_tok": 4,
            "norm_topk_prob": False,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [1],
            "qkv_bias": True,
            "use_sliding_window": False,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "head_dim": 16,
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "num_experts": 12,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "attention_bias": False,
            "use_sliding_window": False,
            "rope_parameters": YARN,
        },
    ),
    "olmoe": (
        "Olmoe",
        {
            "num_key_value_heads": 4,
            "intermediate_size": 24,
            "num_experts": 12,
            "num_experts_per_tok": 5,
            "norm_topk_prob": False,
            "attention_bias": False,
            "clip_qkv": None,
            "rope_parameters": PLAIN_ROPE,
        },
    ),
    "glm-4.5": (
        "Glm4Moe",
        {
            "head_dim": 16,
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "n_routed_experts": 12,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.5,
            "attention_bias": True,
            "use_qk_norm": True,
            "rope_parameters": PLAIN_ROPE | {"partial_rotary_factor": 0.5},
        },
    ),
    "qwen3-next": (
        "Qwen3Next",
        {
            "head_dim": 16,
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 56,
            "num_experts": 12,
            "num_experts_per_tok": 4,
            "norm_topk_prob": True,
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
            "attention_bias": False,
            "layer_types": ["linear_attention", "full_attention", "linear_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 6,
            "linear_key_head_dim": 10,
            "linear_value_head_dim": 12,
            "linear_conv_kernel_dim": 4,
            "rope_parameters": PLAIN_ROPE | {"partial_rotary_factor": 0.5},
        },
    ),
    "gpt-oss": (
        "GptOss",
        {
            "head_dim": 16,
            "intermediate_size": 40,
            "num_local_experts": 10,
            "num_experts_per_tok": 3,
            "sliding_window": 11,
            "layer_types": None,  # a window on every other layer, from the first on
            "attention_bias": True,
            **_CLAMP,
            "rope_parameters": YARN | {"truncate": False},
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            "num_key_value_heads": 4,
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "n_routed_experts": 12,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 10,
            "attention_bias": False,
            "rope_interleave": True,
            "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
        },
    ),
    "deepseek-v2": (
        "DeepseekV2",
        {
            "num_key_value_heads": 4,
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "n_routed_experts": 12,
            "num_experts_per_tok": 4,
            "n_shared_experts": 2,
            "n_group": 4,
            "topk_group": 2,
            "topk_method": "group_limited_greedy",
            "first_k_dense_replace": 1,
            "norm_topk_prob": False,
            "routed_scaling_factor": 2.5,
            "kv_lora_rank": 16,
            "q_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 10,
            "attention_bias": False,
            "mlp_bias": False,
            "rope_parameters": DEEPSEEK_YARN,
        },
    ),
}
# Rows of tables whose parts the families above have all: compared where that is cheap.
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "granite": (
        "GraniteMoe",
        {
            "intermediate_size": 24,
            "num_local_experts": 10,
            "num_experts_per_tok": 3,
            "attention_bias": False,
            "tie_word_embeddings": True,
            "attention_multiplier": 0.3,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.7,
            "logits_scaling": 1.6,
            "rope_parameters": PLAIN_ROPE,
        },
    ),
    "ernie-4.5": (
        "Ernie4_5_Moe",
        {
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "moe_num_experts": 12,
            "moe_k": 4,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": -1,
            "moe_layer_interval": 1,
            "use_bias": False,
            "rope_parameters": PLAIN_ROPE,
        },
    ),
    "dots1": (
        "Dots1",
        {
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "n_routed_experts": 12,
            "num_experts_per_tok": 4,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
            "sliding_window": 11,
            "max_window_layers": 1,
            "rope_parameters": PLAIN_ROPE,
        },
    ),
    "qwen3.5-moe": (
        "Qwen3_5Moe",
        {
            "head_dim": 16,
            "moe_intermediate_size": 24,
            "shared_expert_intermediate_size": 40,
            "num_experts": 12,
            "num_experts_per_tok": 4,
            "attention_bias": False,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 4,
            "linear_key_head_dim": 10,
            "linear_value_head_dim": 8,
            "linear_conv_kernel_dim": 4,
            "rope_parameters": PLAIN_ROPE
            | {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]},
        },
    ),
    "glm-4.7-flash": (
        "Glm4MoeLite",
        {
            "num_key_value_heads": 4,
            "intermediate_size": 40,
            "moe_intermediate_size": 24,
            "n_routed_experts": 12,
            "num_experts_per_tok": 4,
            "n_shared_experts": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 1.8,
            "kv_lora_rank": 20,
            "q_lora_rank": 24,
            "qk_nope_head_dim": 12,
            "qk_rope_head_dim": 8,
            "v_head_dim": 14,
            "rope_parameters": PLAIN_ROPE,
        },
    ),
}
# The same families with the other settings their published models use, or may.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2-moe-normalized": ("qwen2-moe", {"norm_topk_prob": True, "mlp_only_layers": []}),
    "qwen2-moe-sparse-step": ("qwen2-moe", {"decoder_sparse_step": 2, "mlp_only_layers": []}),
    "qwen3-moe-biased": ("qwen3-moe", {"attention_bias": True, "norm_topk_prob": False}),
    "olmoe-clipped": ("olmoe", {"clip_qkv": 0.5, "norm_topk_prob": True}),
    "olmoe-grouped-queries": ("olmoe", {"num_key_value_heads": 2, "attention_bias": True}),
    "glm-4.5-air": ("glm-4.5", {"use_qk_norm": False, "routed_scaling_factor": 1.0}),
    "glm-4.5-grouped": ("glm-4.5", {"n_group": 4, "topk_group": 2}),
    "deepseek-v2-lite": (
        "deepseek-v2",
        {
            "q_lora_rank": None,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "routed_scaling_factor": 1.0,
        },
    ),
    # as Kimi-K2: one group, positions stretched without a ramp, queries straight
    "deepseek-v3-one-group": (
        "deepseek-v3",
        {
            "q_lora_rank": None,
            "n_group": 1,
            "topk_group": 1,
            "norm_topk_prob": False,
            "rope_parameters": DEEPSEEK_YARN | {"beta_fast": 1, "beta_slow": 1},
        },
    ),
    "mixtral-tied": ("mixtral", {"tie_word_embeddings": True}),
    "mixtral-every-expert": ("mixtral", {"num_experts_per_tok": 6}),
    "qwen3-moe-every-expert": ("qwen3-moe", {"num_experts_per_tok": 12}),
}
# Only attention is another: compared as whole models, their routers and experts are not again.
ATTENTION_VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral-windowed": ("mixtral", {"sliding_window": 11}),
    "qwen2-moe-windowed": (
        "qwen2-moe",
        {"sliding_window": 11, "use_sliding_window": True, "max_window_layers": 2},
    ),
    "qwen3-next-odd": (
        "qwen3-next",
        {
            "linear_num_key_heads": 3,
            "linear_num_value_heads": 3,
            "linear_key_head_dim": 7,
            "linear_value_head_dim": 5,
            "linear_conv_kernel_dim": 2,
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
            "attention_bias": True,
            "mlp_only_layers": [1],
            "rope_parameters": YARN | {"partial_rotary_factor": 0.25},
        },
    ),
    "qwen3-next-full-first": (
        "qwen3-next",
        {"layer_types": ["full_attention", "linear_attention", "linear_attention"]},
    ),
    "qwen3-moe-windowed": ("qwen3-moe", {"sliding_window": 11, "use_sliding_window": True}),
    "gpt-oss-one-window": (
        "gpt-oss",
        {
            "layer_types": ["full_attention", "full_attention", "sliding_attention"],
            "attention_bias": False,
            "rope_parameters": PLAIN_ROPE,
        },
    ),
    "deepseek-v3-halves": (
        "deepseek-v3",
        {"rope_interleave": False, "attention_bias": True, "rope_parameters": PLAIN_ROPE},
    ),
    "qwen3-moe-tuned-yarn": ("qwen3-moe", {"rope_parameters": TUNED_YARN}),
    "glm-4.5-quarter-rotary": (
        "glm-4.5",
        {"rope_parameters": PLAIN_ROPE | {"partial_rotary_factor": 0.25}},
    ),
    "deepseek-v2-linear-rope": (
        "deepseek-v2",
        {
            "rope_parameters": PLAIN_ROPE
            | {"rope_type": "linear", "factor": 4.0, "mscale_all_dim": 0.9}
        },
    ),
    "deepseek-v2-biased": ("deepseek-v2", {"attention_bias": True, "rope_parameters": PLAIN_ROPE}),
}
ALL = (*FAMILIES, *ROWS, *VARIANTS)
EVERY = (*ALL, *ATTENTION_VARIANTS)


def make(name: str, seed: int = 0, **changes: Any) -> Any:
    """A stock model in fp32, ready to compare with."""
    family, settings = (VARIANTS | ATTENTION_VARIANTS).get(name, (name, {}))
    kind, fields = (FAMILIES | ROWS)[family]
    text = "Text" if hasattr(transformers, f"{kind}TextConfig") else ""
    config = getattr(transformers, f"{kind}{text}Config")(**(SHARED | fields | settings | changes))
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor_name, tensor in (*model.named_parameters(), *model.named_buffers()):
            if "inv_freq" not in tensor_name:
                _draw(tensor_name, tensor, generator)
    return model.eval()


def _draw(name: str, tensor: Any, generator: torch.Generator) -> None:
    noise = torch.randn(tensor.shape, generator=generator)
    if "norm" in name:  # around 1, or around 0 where the model adds 1
        tensor.copy_(tensor.flatten()[0].round() + 0.2 * noise)
    elif "A_log" in name:  # some heads forget within a few tokens, some hardly at all
        tensor.copy_(-3 + 2 * noise)
    elif tensor.dim() == 1:
        tensor.copy_(0.2 * noise)
    else:
        tensor.copy_(noise * 1.2 * tensor.shape[-1] ** -0.5)


def save(model: Any, folder: Path, **options: Any) -> Path:
    model.save_pretrained(folder, **options)
    return folder


def reload(folder: Path, dtype: torch.dtype) -> Any:
    """The stock model as its own library reads it. (`model.to(dtype)` is something else: it
    rounds the rotary frequencies too.)"""
    kind = transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=dtype).eval()


class Saved(NamedTuple):
    model: Any  # in fp32
    folder: Path  # its checkpoint; not to be changed


@cache
def saved(name: str) -> Saved:
    """One of the models above, made and saved once for all tests of a process."""
    folder = Path(tempfile.mkdtemp(prefix="moesaic-stock-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model = make(name)
    return Saved(model, save(model, folder))
