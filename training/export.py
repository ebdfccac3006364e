"""A checkpoint as a model directory in Hugging Face layout, for transformers and for Moesaic.

python -m training.export RUN MODEL --prepared FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from moesaic.core.errors import BadCheckpoint, BadConfig, ImpossibleSetting
from moesaic.core.folders import whole_folder
from training.checkpoint import read_checkpoint
from training.command import run_command
from training.network import Network
from training.recipe import Shape
from training.tokenizer import CHAT_TEMPLATE, END, END_ID, FILE, open_tokenizer


def export(
    shape: Shape,
    weights: dict[str, torch.Tensor],
    prepared: Path,
    folder: Path,
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Takes the place of an older export, and of nothing else."""
    if folder.exists() and not (folder / "config.json").is_file():
        raise ImpossibleSetting(f"{str(folder)!r} is there and no model: name another folder.")
    tokenizer = open_tokenizer(prepared)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with whole_folder(folder) as fresh:
        packed = save(dict(_converted(shape, weights, dtype)), metadata={"format": "pt"})
        (fresh / "model.safetensors").write_bytes(packed)
        tokenizer.save(str(fresh / FILE))
        for name, content in _settings(shape, dtype).items():
            (fresh / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _converted(
    shape: Shape, weights: dict[str, torch.Tensor], dtype: torch.dtype
) -> Iterator[tuple[str, torch.Tensor]]:
    for name, tensor in stock_weights(shape, weights):
        yield name, tensor.to(dtype).contiguous().clone()


def _settings(shape: Shape, dtype: torch.dtype) -> dict[str, dict[str, Any]]:
    ends = {"bos_token_id": None, "eos_token_id": END_ID, "pad_token_id": END_ID}
    return {
        "config.json": {
            "architectures": ["OlmoeForCausalLM"],
            "model_type": "olmoe",
            "vocab_size": shape.vocabulary,
            "hidden_size": shape.hidden,
            "num_hidden_layers": shape.layers,
            "num_attention_heads": shape.heads,
            "num_key_value_heads": shape.heads,
            "num_experts": shape.experts,
            "num_experts_per_tok": shape.top_k,
            "intermediate_size": shape.expert_width,
            "norm_topk_prob": shape.normalized,
            "hidden_act": "silu",
            "rms_norm_eps": shape.norm_eps,
            "rope_theta": shape.rope_theta,
            "max_position_embeddings": shape.context,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "clip_qkv": None,
            "tie_word_embeddings": True,
            "dtype": str(dtype).removeprefix("torch."),
            **ends,
        },
        # Greedy: an answer is worked out, not drawn.
        "generation_config.json": {"do_sample": False, **ends},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": shape.context,
            "eos_token": END,
            "pad_token": END,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
        "special_tokens_map.json": {"eos_token": END, "pad_token": END},
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.export", description=__doc__)
    parser.add_argument("run", type=Path, help="folder of the checkpoint")
    parser.add_argument("model", type=Path, help="folder to make")
    parser.add_argument("--prepared", type=Path, required=True, help="folder of the tokenizer")
    options = parser.parse_args()
    checkpoint = read_checkpoint(options.run)
    export(checkpoint.recipe.shape, checkpoint.weights, options.prepared, options.model)
    size = sum(file.stat().st_size for file in options.model.iterdir())
    print(f"{options.model}: step {checkpoint.step}, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    run_command(main)


# The network's weights under the names that published OLMoE checkpoints use, and back.

_ATTENTION = "qkv"
_SAME = {  # within a layer
    "attention_norm.weight": "input_layernorm.weight",
    "attention.q_norm.weight": "self_attn.q_norm.weight",
    "attention.k_norm.weight": "self_attn.k_norm.weight",
    "attention.out": "self_attn.o_proj.weight",
    "experts_norm.weight": "post_attention_layernorm.weight",
    "experts.router": "mlp.gate.weight",
}


def stock_weights(
    shape: Shape, weights: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, torch.Tensor]]:
    """One tensor per expert and matrix. The head is the embedding."""
    yield "model.embed_tokens.weight", weights["embedding"]
    yield "model.norm.weight", weights["norm.weight"]
    for layer in range(shape.layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        for mine, stock in _SAME.items():
            yield theirs + stock, weights[ours + mine]
        for letter, matrix in zip(_ATTENTION, weights[f"{ours}attention.qkv"], strict=True):
            yield f"{theirs}self_attn.{letter}_proj.weight", matrix
        for expert in range(shape.experts):
            gate, up = weights[f"{ours}experts.gate_up"][expert].chunk(2)
            place = f"{theirs}mlp.experts.{expert}"
            yield f"{place}.gate_proj.weight", gate
            yield f"{place}.up_proj.weight", up
            yield f"{place}.down_proj.weight", weights[f"{ours}experts.down"][expert]


def own_weights(shape: Shape, stock: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made = {
        "embedding": stock["model.embed_tokens.weight"],
        "norm.weight": stock["model.norm.weight"],
    }
    for layer in range(shape.layers):
        ours, theirs = f"layers.{layer}.", f"model.layers.{layer}."
        for mine, name in _SAME.items():
            made[ours + mine] = stock[theirs + name]
        made[f"{ours}attention.qkv"] = torch.stack(
            [stock[f"{theirs}self_attn.{letter}_proj.weight"] for letter in _ATTENTION]
        )
        gate, up, down = (
            torch.stack(
                [
                    stock[f"{theirs}mlp.experts.{expert}.{kind}_proj.weight"]
                    for expert in range(shape.experts)
                ]
            )
            for kind in ("gate", "up", "down")
        )
        made[f"{ours}experts.gate_up"] = torch.cat((gate, up), dim=1)
        made[f"{ours}experts.down"] = down
    return made


# An exported model directory back as a network, to examine what is published and nothing else.


def read_shape(folder: Path) -> Shape:
    file = folder / "config.json"
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        return Shape(
            vocabulary=fields["vocab_size"],
            hidden=fields["hidden_size"],
            layers=fields["num_hidden_layers"],
            heads=fields["num_attention_heads"],
            experts=fields["num_experts"],
            top_k=fields["num_experts_per_tok"],
            expert_width=fields["intermediate_size"],
            context=fields["max_position_embeddings"],
            normalized=fields["norm_topk_prob"],
            norm_eps=fields["rms_norm_eps"],
            rope_theta=fields["rope_theta"],
        )
    except (OSError, ValueError) as error:
        raise BadConfig(file, "file", f"cannot be read: {error}") from None
    except (KeyError, TypeError) as error:
        raise BadConfig(file, "field", f"expected an export of this recipe: {error}") from None


def read_exported(folder: Path, dtype: torch.dtype = torch.float32) -> Network:
    """Its weights as they are in the file, computing in `dtype`."""
    shape, file = read_shape(folder), folder / "model.safetensors"
    try:
        stock = load_file(file)
        weights = own_weights(shape, stock)
        network = Network(shape, dtype)
        network.load_state_dict({name: value.float() for name, value in weights.items()})
    except (OSError, SafetensorError, KeyError, RuntimeError) as error:
        raise BadCheckpoint(file, "content", f"is not what its config says: {error}") from None
    return network
