"""A checkpoint as a model directory in Hugging Face layout, for transformers and for Moesaic.

python -m training.export RUN MODEL --prepared FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from moesaic.core.errors import ImpossibleSetting
from moesaic.core.folders import whole_folder
from training.checkpoint import read_checkpoint
from training.command import run_command
from training.names import stock_weights
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
