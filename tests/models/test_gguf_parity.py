"""Is a model in GGUF the model its safetensors hold? Logits to the bit where the values are the
same: everything after reading is the same code."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import gguf
import loaded_models
import pytest
import torch

import gguf_models
import stock
from gguf_models import Type
from made_up import in_turns
from moesaic.core.errors import BadCheckpoint, BadConfig
from moesaic.model_info.gguf import families
from moesaic.model_info.network import GroupedAttentionSpec
from moesaic.models.open_model import open_model
from stock_text import prompt, stock_logits

DEEPSEEK_ROPE = stock.YARN | {"mscale": 0.75, "mscale_all_dim": 0.75}  # GGUF has one number
# Fields llama.cpp's implementation of the architecture takes for granted, and widths of whole
# blocks, so that all matrices are quantized.
CHANGES: dict[str, dict[str, Any]] = {
    "mixtral": {"intermediate_size": 64},
    "mixtral-tied": {},
    "olmoe": {"intermediate_size": 64},
    "olmoe-grouped-queries": {},
    "qwen2-moe": {
        "mlp_only_layers": [],
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 32,
    },
    "qwen3-moe": {"moe_intermediate_size": 64},
    "qwen3-moe-biased": {"norm_topk_prob": True},
    "deepseek-v2": {"rope_parameters": DEEPSEEK_ROPE, "moe_intermediate_size": 64},
    "deepseek-v2-lite": {"rope_parameters": DEEPSEEK_ROPE},
    "deepseek-v2-linear-rope": {},
    "deepseek-v3": {"rope_parameters": DEEPSEEK_ROPE, "moe_intermediate_size": 64},
    "gpt-oss": {"intermediate_size": 64, "swiglu_limit": 7.0},
    "gpt-oss-one-window": {"layer_types": None, "swiglu_limit": 7.0},
    "granite": {"intermediate_size": 64},
    "dots1": {"sliding_window": None, "num_key_value_heads": 4, "moe_intermediate_size": 64},
    "glm-4.7-flash": {"moe_intermediate_size": 64},
    "glm-4.5": {"moe_intermediate_size": 64},
    "glm-4.5-air": {},
    "glm-4.5-quarter-rotary": {},
    "glm-4.5-grouped": {},
}
FAMILIES = tuple(name for name in CHANGES if name in stock.FAMILIES | {"granite": ()})


@cache
def _made(name: str) -> Any:
    return stock.make(name, **CHANGES[name])


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return stock.save(_made(request.param), tmp_path / "checkpoint")


def logits(path: Path) -> torch.Tensor:
    """Of a prompt and of one token after it."""
    model = loaded_models.load(path)
    return torch.cat([*model.logits([prompt(12)]), *model.logits([[5]])])


@pytest.mark.parametrize("folder", CHANGES, indirect=True)
def test_fp32_tensors_give_the_same_logits(
    folder: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    file = gguf_models.convert(folder, tmp_path / "model.gguf")
    mine = logits(file)
    assert torch.equal(mine, logits(folder))
    theirs, _ = stock_logits(_made(request.node.callspec.params["folder"]), [*prompt(12), 5])
    assert (theirs - mine).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("folder", "kind"),
    in_turns(FAMILIES, [Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q5_1]),
    indirect=["folder"],
)
def test_quantized_tensors_are_what_the_reference_makes_of_them(
    folder: Path, tmp_path: Path, kind: Type
) -> None:
    file = gguf_models.convert(folder, tmp_path / "model.gguf", kind)
    same = gguf_models.rounded(folder, tmp_path / "rounded", kind)
    mine = logits(file)
    assert torch.equal(mine, logits(same))
    assert not torch.equal(mine, logits(folder)), "nothing was quantized"


@pytest.mark.parametrize("folder", ["deepseek-v2", "deepseek-v2-lite"], indirect=True)
def test_older_files_have_the_expansion_of_keys_and_values_in_one(
    folder: Path, tmp_path: Path
) -> None:
    file = gguf_models.convert(folder, tmp_path / "model.gguf", old_latent=True)
    assert torch.equal(logits(file), logits(folder))


@pytest.mark.parametrize("folder", ["qwen3-moe", "mixtral"], indirect=True)
def test_a_split_model(folder: Path, tmp_path: Path) -> None:
    first = gguf_models.convert(folder, tmp_path / "model.gguf", split=7)
    parts = sorted(tmp_path.glob("model-*.gguf"))
    assert len(parts) > 3
    assert torch.equal(logits(first), logits(folder))
    assert open_model(first).architecture.spec.name == "model"
    with pytest.raises(BadCheckpoint, match=f"not the first part: open {first.name}"):
        open_model(parts[1])
    parts[2].unlink()
    with pytest.raises(BadCheckpoint, match=f"{parts[2].name}.*is missing"):
        open_model(first)


@pytest.mark.parametrize("folder", ["glm-4.5"], indirect=True)
def test_layers_that_predict_further_tokens_are_not_run(folder: Path, tmp_path: Path) -> None:
    """They are counted as layers, and come last."""

    def add(writer: Any) -> None:
        writer.kv_data[0]["glm4moe.block_count"].value = 4
        writer.add_nextn_predict_layers(1)
        writer.add_tensor("blk.3.nextn.enorm.weight", torch.ones(32).numpy())

    file = gguf_models.convert(folder, tmp_path / "a.gguf", add=add)
    assert torch.equal(logits(file), logits(folder))
    assert open_model(file).architecture.spec.num_layers == 3


@pytest.mark.parametrize("folder", ["glm-4.7-flash"], indirect=True)
def test_the_first_files_of_glm_flash_do_not_say_how_experts_are_scored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are known by their layers and vocabulary, as in llama.cpp."""

    def silent(writer: Any) -> None:
        del writer.kv_data[0]["deepseek2.expert_gating_func"]

    file = gguf_models.convert(folder, tmp_path / "a.gguf", add=silent)
    with pytest.raises(BadConfig, match="expert_weights_norm: expected False"):
        loaded_models.load(file)
    spec = open_model(folder).architecture.spec
    monkeypatch.setattr(families, "GLM_FLASH", ((spec.num_layers, spec.vocab_size),))
    assert torch.equal(logits(file), logits(folder))


@pytest.mark.parametrize("folder", ["granite"], indirect=True)
def test_granite_without_scales_or_positions(folder: Path, tmp_path: Path) -> None:
    def bare(writer: Any) -> None:
        for key in ("embedding_scale", "residual_scale", "attention.scale"):
            del writer.kv_data[0][f"granitemoe.{key}"]

    found = open_model(gguf_models.convert(folder, tmp_path / "a.gguf", add=bare)).architecture
    first = found.network.layers[0]
    assert (found.network.embedding_scale, first.residual) == (1.0, 1.0)
    assert isinstance(first.attention, GroupedAttentionSpec)
    assert first.attention.scale == found.spec.head_dim**-0.5

    def turned_off(writer: Any) -> None:
        writer.add_rope_scaling_finetuned(False)

    file = gguf_models.convert(folder, tmp_path / "b.gguf", add=turned_off)
    with pytest.raises(BadConfig, match=r"granitemoe.rope.scaling.finetuned: expected true"):
        open_model(file)


@pytest.mark.parametrize("folder", ["mixtral"], indirect=True)
def test_the_first_files_of_mixtral_have_experts_one_by_one(folder: Path, tmp_path: Path) -> None:
    file = gguf_models.convert(folder, tmp_path / "a.gguf", Type.Q8_0, stacked=False)
    same = gguf_models.rounded(folder, tmp_path / "rounded", Type.Q8_0)
    assert torch.equal(logits(file), logits(same))
    assert open_model(file).architecture.spec.native_dtype == "int8"


@pytest.mark.parametrize("folder", ["qwen3-moe"], indirect=True)
def test_gate_and_up_in_one_stack(folder: Path, tmp_path: Path) -> None:
    file = gguf_models.convert(folder, tmp_path / "a.gguf", fused=True)
    assert torch.equal(logits(file), logits(folder))


@pytest.mark.parametrize("folder", ["qwen3-moe"], indirect=True)
@pytest.mark.parametrize(
    ("kind", "native"),
    [
        (Type.F32, "fp32"),
        (Type.F16, "fp16"),
        (Type.BF16, "bf16"),
        (Type.Q8_0, "int8"),
        (Type.Q5_1, "int8"),
        (Type.Q4_0, "int4"),
    ],
)
def test_experts_are_held_in_about_what_they_are_stored_in(
    folder: Path, tmp_path: Path, kind: Type, native: str
) -> None:
    file = gguf_models.convert(folder, tmp_path / "a.gguf", kind)
    assert open_model(file).architecture.spec.native_dtype == native


def test_a_directory_with_nothing_but_gguf(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadConfig, match=r"found model\.gguf: give the name of that file"):
        open_model(tmp_path)


def test_a_scale_that_is_no_number_is_refused(tmp_path: Path) -> None:
    """MXFP4, OCP Microscaling: 0xFF is NaN. File and tensor are named."""
    folder = stock.save(_made("gpt-oss"), tmp_path / "model")
    file = gguf_models.convert(folder, tmp_path / "m.gguf", Type.MXFP4)
    model = open_model(file)
    name = "model.layers.0.mlp.experts.down_proj"
    shape = (model.architecture.spec.num_experts, 64, model.architecture.spec.hidden_size)
    assert model.checkpoint.read_part(name, shape, 0).isfinite().all()
    with file.open("r+b") as stream:
        stream.seek(_start_of(file, "blk.0.ffn_down_exps.weight"))
        stream.write(b"\xff")
    with pytest.raises(BadCheckpoint, match=r"m\.gguf.*blk\.0\.ffn_down_exps.*0xFF"):
        open_model(file).checkpoint.read_part(name, shape, 0)


def _start_of(file: Path, name: str) -> int:
    (tensor,) = (one for one in gguf.GGUFReader(file).tensors if one.name == name)
    return int(tensor.data_offset)
