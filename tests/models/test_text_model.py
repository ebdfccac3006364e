"""A model that also sees images: is its text model found inside, and what the stock model says?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import loaded_models
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import stock
from moesaic.core.errors import BadConfig
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.text.tokenizer_files import read_eos_ids
from stock_text import prompt

VISION: dict[str, Any] = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "patch_size": 4,
    "num_position_embeddings": 16,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """With the weights of the stock text model, random eyes, and a layer for further tokens."""
    text = stock.saved("qwen3.5-moe").model
    inner = text.config.to_dict() | {"eos_token_id": 5}
    config = transformers.Qwen3_5MoeConfig(text_config=inner, vision_config=VISION)
    model = transformers.Qwen3_5MoeForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    folder = stock.save(model, tmp_path_factory.mktemp("whole"))
    tensors = load_file(folder / "model.safetensors")
    assert any(name.startswith("model.language_model.layers.0") for name in tensors)
    assert any(name.startswith("model.visual.") for name in tensors)
    tensors["mtp.fc.weight"] = torch.zeros(32, 64)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "generation_config.json").unlink(missing_ok=True)
    return model, folder


def test_its_text_model_is_run(whole: tuple[Any, Path]) -> None:
    model, folder = whole
    with torch.inference_mode():
        theirs = model(torch.tensor([prompt(40)])).logits[0]
    (mine,) = loaded_models.load(folder).logits([prompt(40)])
    assert (theirs - mine).abs().max() < 1e-4
    assert read_eos_ids(folder, None) == {5}


def test_what_it_may_not_say_is_refused(whole: tuple[Any, Path], tmp_path: Path) -> None:
    fields = json.loads((whole[1] / "config.json").read_text())
    fields["text_config"]["attn_output_gate"] = False
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(BadConfig, match="attn_output_gate: expected True, not False"):
        read_architecture(tmp_path)
