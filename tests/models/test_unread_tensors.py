"""Is a checkpoint refused that has tensors nothing reads, and accepted where they do not matter?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import loaded_models
import pytest
import torch
from safetensors.torch import load_file, save_file

import stock
from moesaic.core.errors import BadCheckpoint
from moesaic.models.open_model import load_decoder, open_model

TOKENS = list(range(3, 30, 2))
LAYER = "model.layers.1"


def with_tensors(name: str, folder: Path, *names: str, **fields: Any) -> Path:
    """A checkpoint with some tensors more than the model has, and other fields in its config."""
    stock.save(stock.saved(name).model, folder)
    file, config = folder / "model.safetensors", folder / "config.json"
    more = {name: torch.zeros(4, dtype=torch.int8) for name in names}
    save_file(load_file(file) | more, file)
    config.write_text(json.dumps(json.loads(config.read_text()) | fields))
    return folder


def complaint(folder: Path) -> str:
    with pytest.raises(BadCheckpoint) as caught:
        open_model(folder)
    return str(caught.value)


def logits(folder: Path) -> torch.Tensor:
    return loaded_models.load(folder).logits([TOKENS])[0]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("deepseek-v2", "model.layers.0.mlp.gate_proj.bias"),
        ("deepseek-v2", f"{LAYER}.mlp.shared_experts.up_proj.bias"),
        ("deepseek-v2", "model.layers.3.self_attn.o_proj.weight"),
        ("olmoe", f"{LAYER}.self_attn.q_proj.bias"),
        ("olmoe", f"{LAYER}.mlp.experts.12.up_proj.weight"),
        ("qwen3-moe", f"{LAYER}.mlp.shared_expert.up_proj.weight"),
        ("qwen3-moe", f"{LAYER}.mlp.gate.e_score_correction_bias"),
        ("glm-4.5-air", f"{LAYER}.self_attn.q_norm.weight"),
        ("glm-4.5", "model.layers.4.eh_proj.weight"),
        ("glm-4.5", "lm_head.bias"),
        ("mixtral", "score.weight"),
        ("mixtral", f"{LAYER}.block_sparse_moe.experts.0.w1.weight_scale_inv"),
    ],
)
def test_a_tensor_nothing_reads_is_refused(model: str, name: str, tmp_path: Path) -> None:
    said = complaint(with_tensors(model, tmp_path, name))
    assert str(tmp_path / "model.safetensors") in said
    assert f": {name}: nothing in" in said
    assert "correct config.json" in said


def test_many_are_counted(tmp_path: Path) -> None:
    names = [f"{LAYER}.mlp.experts.{expert}.up_proj.bias" for expert in range(5)]
    said = complaint(with_tensors("olmoe", tmp_path, *names))
    assert f"{', '.join(names[:3])} and 2 more: nothing" in said
    assert "more" not in complaint(with_tensors("olmoe", tmp_path, *names[:3]))


def test_a_config_with_fewer_layers_than_the_files_have(tmp_path: Path) -> None:
    said = complaint(with_tensors("olmoe", tmp_path, num_hidden_layers=2))
    assert "model.layers.2." in said


def test_rotary_frequencies_of_older_files_are_left_alone(tmp_path: Path) -> None:
    folder = with_tensors("mixtral", tmp_path, f"{LAYER}.self_attn.rotary_emb.inv_freq")
    assert torch.equal(logits(folder), logits(stock.saved("mixtral").folder))


@pytest.mark.parametrize("field", ["num_nextn_predict_layers", "num_mtp_layers"])
def test_layers_that_predict_further_tokens_are_left_alone(field: str, tmp_path: Path) -> None:
    """GLM's files have as many as the config says; decoding does not use them."""
    names = ("model.layers.3.eh_proj.weight", "model.layers.4.mlp.gate.weight")
    fields = {"num_nextn_predict_layers": None, field: 2}
    folder = with_tensors("glm-4.5", tmp_path, *names, **fields)
    assert torch.equal(logits(folder), logits(stock.saved("glm-4.5").folder))
    assert names[1] in complaint(with_tensors("glm-4.5", tmp_path, *names, **fields | {field: 1}))


def test_ernies_further_tokens_have_a_name(tmp_path: Path) -> None:
    name, fields = "model.mtp_linear_proj.0.weight", {"num_nextn_predict_layers": 1}
    folder = with_tensors("ernie-4.5", tmp_path, name, **fields)
    assert torch.equal(logits(folder), logits(stock.saved("ernie-4.5").folder))
    assert name in complaint(with_tensors("ernie-4.5", tmp_path, name))


@pytest.mark.parametrize("model_type", ["deepseek_v3", "kimi_k2"])
def test_deepseek_v3_and_kimi_k2_are_one_network(model_type: str, tmp_path: Path) -> None:
    """By two names, and with the layer that predicts a further token or without."""
    names = ("model.layers.3.eh_proj.weight", "model.layers.3.shared_head.head.weight")
    fields = {"model_type": model_type, "num_nextn_predict_layers": 1}
    folder = with_tensors("deepseek-v3", tmp_path, *names, **fields)
    assert torch.equal(logits(folder), logits(stock.saved("deepseek-v3").folder))
    assert names[0] in complaint(
        with_tensors("deepseek-v3", tmp_path, *names, **fields | {"num_nextn_predict_layers": 0})
    )


def test_a_copy_of_the_embedding_may_be_the_tied_head(tmp_path: Path) -> None:
    model, folder = stock.saved("mixtral-tied")
    stock.save(model, tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    assert "lm_head.weight" not in tensors
    head = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    assert torch.equal(logits(tmp_path), logits(folder))
    head[5, 7] += 1
    save_file(tensors | {"lm_head.weight": head}, tmp_path / "model.safetensors")
    with pytest.raises(BadCheckpoint, match=r"lm_head.*tie_word_embeddings is true: set it to fal"):
        load_decoder(open_model(tmp_path), "fp32")


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    """The index names one of them; which one a reader takes would be chance."""
    stock.save(stock.saved("mixtral").model, tmp_path, max_shard_size="30KB")
    first, second = sorted(tmp_path.glob("model-*.safetensors"))[:2]
    tensors = load_file(first)
    save_file(load_file(second) | {"model.norm.weight": torch.zeros(32)}, second)
    save_file(tensors | {"model.norm.weight": torch.zeros(32)}, first)
    said = complaint(tmp_path)
    assert str(second) in said
    assert f"model.norm.weight: is in {first.name} too" in said
