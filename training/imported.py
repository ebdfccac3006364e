"""An exported model directory back as a network, to examine what is published and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from moesaic.core.errors import BadCheckpoint, BadConfig
from training.names import own_weights
from training.network import Network
from training.recipe import Shape


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
