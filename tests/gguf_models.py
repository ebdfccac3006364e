"""Checkpoints written as GGUF, as llama.cpp's converter writes them. Names of tensors and keys are
the `gguf` package's own, so that they are not ours twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import load_file, save_file

Arrays = dict[str, np.ndarray[Any, Any]]
Type = gguf.GGMLQuantizationType

ARCHITECTURES = {
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "granitemoe": gguf.MODEL_ARCH.GRANITE_MOE,
    "olmoe": gguf.MODEL_ARCH.OLMOE,
    "qwen2_moe": gguf.MODEL_ARCH.QWEN2MOE,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "deepseek_v2": gguf.MODEL_ARCH.DEEPSEEK2,
    "deepseek_v3": gguf.MODEL_ARCH.DEEPSEEK2,
    "gpt_oss": gguf.MODEL_ARCH.GPT_OSS,
    "dots1": gguf.MODEL_ARCH.DOTS1,
    "glm4_moe_lite": gguf.MODEL_ARCH.DEEPSEEK2,
    "glm4_moe": gguf.MODEL_ARCH.GLM4_MOE,
}
_TRANSPOSED = (".experts.gate_up_proj", ".experts.down_proj")  # as gpt-oss has them
_PERMUTED = ("mixtral", "granitemoe")
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.weight")


def convert(
    folder: Path,
    file: Path,
    kind: Type = Type.F32,
    split: int = 0,
    old_latent: bool = False,
    stacked: bool = True,
    fused: bool = False,
    add: Callable[[gguf.GGUFWriter], object] = lambda writer: None,
) -> Path:
    """`split`: tensors per part, and the first part is returned. `old_latent`: DeepSeek as files
    had it before the expansion was stored in two tensors. Not `stacked`: experts one by one, as in
    the first files of Mixtral. `fused`: gate and up projections of all experts in one tensor."""
    config = json.loads((folder / "config.json").read_text())
    name = gguf.MODEL_ARCH_NAMES[ARCHITECTURES[config["model_type"]]]
    writer = gguf.GGUFWriter(file, name, split_max_tensors=split)
    _write_common(writer, config)
    if config["model_type"] in _WRITERS:
        _WRITERS[config["model_type"]](writer, config)
    if config["model_type"] in LATENT:
        _write_latent(writer, config, old_latent)
    add(writer)
    tensors = _tensors(folder, config, old_latent)
    if not stacked:
        tensors = _apart(tensors)
    if fused:
        tensors = _fused(tensors)
    for tensor, values in tensors.items():
        _write_tensor(writer, tensor, values, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file if file.exists() else next(iter(sorted(file.parent.glob(f"{file.stem}-00001*"))))


def write_tokenizer(
    writer: gguf.GGUFWriter, content: Mapping[str, Any], pre: str, rows: int
) -> None:
    """A tokenizer.json's content as llama.cpp's converter writes it, rows beyond it padded."""
    added = {token["id"]: token for token in content["added_tokens"]}
    by_id = {number: token for token, number in content["model"]["vocab"].items()}
    by_id |= {number: token["content"] for number, token in added.items()}
    kinds = gguf.TokenType
    types = [
        kinds.UNUSED
        if number not in by_id
        else kinds.NORMAL
        if number not in added
        else kinds.CONTROL
        if added[number]["special"]
        else kinds.USER_DEFINED
        for number in range(rows)
    ]
    merges = content["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([by_id.get(number, f"[PAD{number}]") for number in range(rows)])
    writer.add_token_types(types)
    writer.add_token_merges([m if isinstance(m, str) else " ".join(m) for m in merges])


def rounded(folder: Path, to: Path, kind: Type) -> Path:
    """The same checkpoint with the values that `kind` keeps, by the `gguf` package."""
    to.mkdir(exist_ok=True)
    (to / "config.json").write_text((folder / "config.json").read_text())
    tensors = load_file(folder / "model.safetensors")
    for name, values in tensors.items():
        turned = name.endswith(_TRANSPOSED)
        rows = values.transpose(1, 2).contiguous() if turned else values
        if is_quantized(name, rows.numpy(), kind):
            found = torch.from_numpy(dequantize(quantize(rows.numpy(), kind), kind))
            tensors[name] = found.transpose(1, 2).contiguous() if turned else found
    save_file(tensors, to / "model.safetensors")
    return to


def is_quantized(name: str, values: np.ndarray[Any, Any], kind: Type) -> bool:
    """As the converter decides: matrices of whole blocks, but no norms, biases and routers."""
    block, _ = gguf.GGML_QUANT_SIZES[kind]
    routers = (
        "ffn_gate_inp",
        ".mlp.gate.",
        ".mlp.router.",
        ".block_sparse_moe.gate.",
        ".block_sparse_moe.router.",
        "expert_gate",
    )
    if values.ndim < 2 or name.endswith("bias") or any(part in name for part in routers):
        return False
    return int(values.shape[-1]) % block == 0


def _write_tensor(
    writer: gguf.GGUFWriter, name: str, values: np.ndarray[Any, Any], kind: Type
) -> None:
    if not is_quantized(name, values, kind):
        writer.add_tensor(name, values)
    else:
        writer.add_tensor(name, quantize(values, kind), raw_dtype=kind)


def _tensors(folder: Path, config: Mapping[str, Any], old_latent: bool) -> Arrays:
    kind, layers = config["model_type"], config["num_hidden_layers"]
    names = gguf.get_tensor_name_map(ARCHITECTURES[kind], layers)
    found: Arrays = {}
    for name, values in _stacked(load_file(folder / "model.safetensors")).items():
        for part, array in _converted(name, values, config, old_latent).items():
            stored = names.get_name(part, try_suffixes=(".weight", ".bias"))
            if part.endswith("e_score_correction_bias"):
                stored = names.get_name(
                    part.replace("e_score_correction_bias", "e_score_correction")
                )
                stored = f"{stored}.bias"
            assert stored is not None, part
            if part.endswith(".sinks"):
                stored = f"{stored}.weight"
            found[stored] = array
    return found


def _stacked(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    experts: dict[str, dict[int, torch.Tensor]] = {}
    found = {}
    for name, values in tensors.items():
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            found[name] = values
        else:
            experts.setdefault(f"{expert[1]}.{expert[3]}.weight", {})[int(expert[2])] = values
    return found | {
        name: torch.stack([each[number] for number in range(len(each))])
        for name, each in experts.items()
    }


def _apart(tensors: Arrays) -> Arrays:
    found: Arrays = {}
    for name, values in tensors.items():
        start, stack, _ = name.partition("_exps.weight")
        parts = {f"{start}.{number}.weight": each for number, each in enumerate(values)}
        found |= parts if stack else {name: values}
    return found


def _fused(tensors: Arrays) -> Arrays:
    found = {name: values for name, values in tensors.items() if "_up_exps" not in name}
    for name in [name for name in found if "_gate_exps" in name]:
        both = found.pop(name), tensors[name.replace("gate", "up")]
        found[name.replace("gate", "gate_up")] = np.concatenate(both, axis=1)
    return found


def _converted(
    name: str, values: torch.Tensor, config: Mapping[str, Any], old_latent: bool
) -> Arrays:
    if config["model_type"] in _PERMUTED and "q_proj" in name:
        values = _permuted(values, config["num_attention_heads"])
    if config["model_type"] in _PERMUTED and "k_proj" in name:
        values = _permuted(values, config["num_key_value_heads"])
    stack = name.rpartition(".experts.")[2]
    if stack.startswith(("gate_up_proj", "down_proj")) and config["model_type"] == "gpt_oss":
        return _plain_stacks(name, values)
    if name.endswith("block_sparse_moe.input_linear.weight"):
        gate, up = values.chunk(2, dim=1)
        start = name.removesuffix("input_linear.weight")
        return {f"{start}experts.w1.weight": gate.numpy(), f"{start}experts.w3.weight": up.numpy()}
    if name.endswith("shared_expert_gate.weight"):
        values = values.squeeze()
    if not name.endswith("kv_b_proj.weight") or old_latent:
        return {name: values.numpy()}
    width = config["qk_nope_head_dim"], config["v_head_dim"]
    both = values.unflatten(0, (config["num_attention_heads"], sum(width)))
    keys, expanded = both.split(width, dim=1)
    return {
        name.replace("kv_b", "k_b"): keys.transpose(1, 2).contiguous().numpy(),
        name.replace("kv_b", "v_b"): expanded.contiguous().numpy(),
    }


def _plain_stacks(name: str, values: torch.Tensor) -> Arrays:
    """gpt-oss: matrices the other way round, gate and up apart."""
    end = "bias" if name.endswith("_bias") else "weight"
    base = name.removesuffix("_bias")
    rows = values if end == "bias" else values.transpose(1, 2).contiguous()
    if base.endswith("down_proj"):
        return {f"{base}.{end}": rows.numpy()}
    gate, up = (rows[:, first::2].contiguous().numpy() for first in (0, 1))
    plain = base.removesuffix("gate_up_proj")
    return {f"{plain}gate_proj.{end}": gate, f"{plain}up_proj.{end}": up}


def _permuted(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Row i of the first half of a head next to row i of the second."""
    both = rows.unflatten(0, (heads, 2, -1))
    return both.transpose(1, 2).flatten(0, 2).contiguous()


def _write_common(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    counts = ("num_local_experts", "num_experts", "n_routed_experts")
    writer.add_expert_count(next(config[name] for name in counts if name in config))
    writer.add_file_type(0)
    if config["model_type"] not in LATENT:
        writer.add_head_count_kv(config["num_key_value_heads"])
        if config.get("head_dim"):
            writer.add_key_length(config["head_dim"])
            writer.add_value_length(config["head_dim"])
    _write_rope(writer, config["rope_parameters"])


def _write_rope(writer: gguf.GGUFWriter, rope: Mapping[str, Any]) -> None:
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def _write_mixtral(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_vocab_size(config["vocab_size"])
    writer.add_rope_dimension_count(config["hidden_size"] // config["num_attention_heads"])


def _write_qwen2(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])


def _write_qwen3(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])


def _write_scaled(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_expert_shared_count(config["n_shared_experts"])
    writer.add_leading_dense_block_count(config["first_k_dense_replace"])
    writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_expert_weights_norm(config["norm_topk_prob"])
    writer.add_expert_group_count(config["n_group"])
    writer.add_expert_group_used_count(config["topk_group"])


def _write_sigmoid(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    _write_scaled(writer, config)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def _write_glm(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    _write_sigmoid(writer, config)
    share = config["rope_parameters"]["partial_rotary_factor"]
    writer.add_rope_dimension_count(int(config["head_dim"] * share))


def _write_glm_flash(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    dense = config["mlp_layer_types"].count("dense")
    _write_sigmoid(writer, {**config, "first_k_dense_replace": dense})


def _write_granite(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    _write_mixtral(writer, config)
    writer.add_attention_scale(config["attention_multiplier"])
    writer.add_embedding_scale(config["embedding_multiplier"])
    writer.add_residual_scale(config["residual_multiplier"])
    writer.add_logit_scale(config["logits_scaling"])


def _write_gpt_oss(writer: gguf.GGUFWriter, config: Mapping[str, Any]) -> None:
    writer.add_expert_feed_forward_length(config["intermediate_size"])
    writer.add_sliding_window(config["sliding_window"])


def _write_latent(writer: gguf.GGUFWriter, config: Mapping[str, Any], old: bool) -> None:
    rope, rank = config["rope_parameters"], config["kv_lora_rank"]
    turning = config["qk_rope_head_dim"]
    whole = config["qk_nope_head_dim"] + turning
    writer.add_rope_dimension_count(turning)
    writer.add_kv_lora_rank(rank)
    if config["q_lora_rank"] is not None:
        writer.add_q_lora_rank(config["q_lora_rank"])
    writer.add_head_count_kv(config["num_attention_heads"] if old else 1)
    writer.add_key_length(whole if old else rank + turning)
    writer.add_value_length(config["v_head_dim"] if old else rank)
    if not old:
        writer.add_key_length_mla(whole)
        writer.add_value_length_mla(config["v_head_dim"])
    if "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])


_WRITERS: dict[str, Callable[[gguf.GGUFWriter, Mapping[str, Any]], None]] = {
    "mixtral": _write_mixtral,
    "qwen2_moe": _write_qwen2,
    "qwen3_moe": _write_qwen3,
    "deepseek_v2": _write_scaled,
    "deepseek_v3": _write_sigmoid,
    "gpt_oss": _write_gpt_oss,
    "granitemoe": _write_granite,
    "dots1": _write_sigmoid,
    "glm4_moe_lite": _write_glm_flash,
    "glm4_moe": _write_glm,
}
