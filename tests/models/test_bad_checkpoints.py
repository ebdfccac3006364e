"""Does each way a model directory can be wrong give one message with file, tensor, expectation?"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import stock
from moesaic.core.errors import BadCheckpoint, BadConfig, ImpossibleSetting, UnknownName
from moesaic.model_info.model_families import FAMILIES
from moesaic.model_info.model_zoo import load_model
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.configs.families import NOT_IMPLEMENTED, RUNNABLE
from moesaic.models.open_model import load_decoder, open_model

Tensors = dict[str, torch.Tensor]
ROUTER = "model.layers.1.block_sparse_moe.gate.weight"
EXPERT = "model.layers.2.block_sparse_moe.experts.5.w2.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return stock.save(stock.saved("mixtral").model, tmp_path)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    return stock.save(stock.saved("mixtral").model, tmp_path, max_shard_size="30KB")


def change_tensors(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))


def complaint(folder: Path, kind: type[Exception] = BadCheckpoint) -> str:
    with pytest.raises(kind) as caught:
        open_model(folder)
    return str(caught.value)


def test_a_missing_shard(shards: Path) -> None:
    victim = sorted(shards.glob("model-*.safetensors"))[1]
    victim.unlink()
    said = complaint(shards)
    assert str(victim) in said
    assert "missing" in said
    assert "model.safetensors.index.json places" in said


@pytest.mark.parametrize("keep", [0, 5, 40, 0.5, -1])
def test_a_truncated_shard(shards: Path, keep: float) -> None:
    """Nothing left, half the header's length, half the header, half the data, all but a byte."""
    victim = sorted(shards.glob("model-*.safetensors"))[0]
    whole = victim.read_bytes()
    end = keep if isinstance(keep, int) else int(len(whole) * keep)
    victim.write_bytes(whole[:end])
    said = complaint(shards)
    assert str(victim) in said
    expected = "not a safetensors file" if keep in (0, 5) else "the file is truncated: expected"
    assert expected in said


@pytest.mark.parametrize(
    "content",
    [
        b"version https://git-lfs.github.com/spec/v1\n" * 3,
        (4).to_bytes(8, "little") + b"{{{{",
        (4).to_bytes(8, "little") + b"[1 ]",
        (24).to_bytes(8, "little") + b'{"a": {"dtype": "F32"}} ',
    ],
)
def test_a_file_that_is_something_else(folder: Path, content: bytes) -> None:
    (folder / "model.safetensors").write_bytes(content)
    assert str(folder / "model.safetensors") in complaint(folder)


def test_a_header_that_contradicts_itself(folder: Path) -> None:
    header = json.dumps({"t": {"dtype": "F32", "shape": [4], "data_offsets": [0, 8]}}).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert "t: F32 [4] takes 16 bytes, the header gives it 8" in complaint(folder)


@pytest.mark.parametrize("name", ["lm_head.weight", ROUTER, EXPERT])
def test_a_missing_tensor(folder: Path, name: str) -> None:
    change_tensors(folder, lambda tensors: tensors.pop(name))
    said = complaint(folder)
    assert said.endswith(f"{name}: the tensor is missing")
    assert str(folder / "model.safetensors") in said


@pytest.mark.parametrize(
    ("name", "expected"),
    [("model.norm.weight", "[32]"), (ROUTER, "[6, 32]"), (EXPERT, "[32, 48]")],
)
def test_a_wrong_shape(folder: Path, name: str, expected: str) -> None:
    change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(3, 5)}))
    said = complaint(folder)
    assert f"{name}: expected shape {expected}, found [3, 5]" in said


def test_an_unread_precision(folder: Path) -> None:
    change_tensors(
        folder, lambda tensors: tensors.update({EXPERT: torch.zeros(32, 48, dtype=torch.int8)})
    )
    assert f"{EXPERT}: stored as I8; expected F32, F16, BF16" in complaint(folder)


def test_no_weights_at_all(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    said = complaint(folder)
    assert "expected model.safetensors or model.safetensors.index.json" in said
    assert "found pytorch_model.bin: PyTorch's pickled weights are not read: convert it" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [("not json", "expected JSON"), ("[]", "weight_map"), ('{"weight_map": 3}', "weight_map")],
)
def test_a_broken_index(shards: Path, content: str, said: str) -> None:
    (shards / "model.safetensors.index.json").write_text(content)
    assert f"model.safetensors.index.json': {'file: ' if 'JSON' in said else ''}{said}" in (
        complaint(shards)
    )


def test_an_architecture_that_can_only_be_simulated(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(RUNNABLE, "mixtral")
    said = complaint(folder)
    assert "'mixtral' can be simulated but not run" in said
    assert "olmoe, qwen2_moe, " in said
    assert "config.json" in said


def test_a_recent_architecture_says_what_is_missing(folder: Path) -> None:
    change_config(folder, model_type="kimi_linear")
    said = complaint(folder, BadConfig)
    assert "'kimi_linear' (its linear attention, a gated delta net, is not implemented)" in said
    assert not NOT_IMPLEMENTED.keys() & FAMILIES.keys()


@pytest.mark.parametrize("model_type", ["llama", None, ["olmoe"]])
def test_an_unknown_architecture(folder: Path, model_type: object) -> None:
    change_config(folder, model_type=model_type)
    said = complaint(folder, BadConfig)
    runnable = ", ".join(sorted(RUNNABLE))
    assert f"unsupported architecture {model_type!r}; can be run: {runnable}" in said


@pytest.mark.parametrize("read", [open_model, load_model])
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_a_dense_model_is_called_dense(
    tmp_path: Path, read: Callable[[str], object], model_type: str
) -> None:
    fields = {"model_type": model_type, "hidden_size": 64, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(BadConfig) as caught:
        read(str(tmp_path))
    said = str(caught.value)
    assert f"model_type: '{model_type}' is a dense model: it has no experts" in said
    assert "run this one with transformers, vLLM or llama.cpp" in said


def test_quantized_weights(folder: Path) -> None:
    change_config(folder, quantization_config={"quant_method": "bitsandbytes", "bits": 4})
    said = complaint(folder, BadConfig)
    assert "quantization_config.quant_method: weights quantized with 'bitsandbytes' cannot" in said
    assert "can be read: fp8, gptq, awq, mxfp4, compressed-tensors, and the model in bf16" in said


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}},
            "default, linear, yarn",
        ),
        ({"rope_parameters": {"rope_type": "yarn"}}, "rope_theta: is missing"),
        ({"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4}}, "factor: is missing"),
        (
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0, "factor": 4.0}},
            "rope_theta: expected a number above 1 with YaRN, not 1.0",
        ),
        ({"hidden_act": "relu6"}, "hidden_act: expected one of silu"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps: expected a number"),
    ],
)
def test_a_config_that_cannot_be_computed(folder: Path, fields: dict[str, Any], said: str) -> None:
    change_config(folder, **fields)
    assert said in complaint(folder, BadConfig)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"n_group": 5}, "n_group: expected a divisor of 12"),
        ({"topk_group": 9}, "topk_group: expected at most 4"),
        ({"topk_method": "magic"}, "topk_method: expected one of"),
    ],
)
def test_groups_that_do_not_divide(tmp_path: Path, fields: dict[str, Any], said: str) -> None:
    stock.save(stock.saved("deepseek-v2").model, tmp_path)
    change_config(tmp_path, **fields)
    assert said in complaint(tmp_path, BadConfig)


def test_a_dtype_nothing_is_computed_in() -> None:
    with pytest.raises(UnknownName, match="compute dtype 'int4'"):
        load_decoder(open_model(stock.saved("mixtral").folder), "int4")


def test_a_sequence_longer_than_the_cache() -> None:
    model = open_model(stock.saved("mixtral").folder)
    cache = BlockCache(model.architecture.spec, 1, 4, torch.float32)
    keys = torch.zeros(5, 16)
    with pytest.raises(ImpossibleSetting, match=r"5 tokens was asked for.* holds 4"):
        cache.extend(0, 0, keys, keys)
    assert len(cache.extend(0, 0, keys[:4], keys[:4])[0]) == 4


def test_an_index_that_places_a_tensor_in_another_file(shards: Path) -> None:
    """As after files of two downloads were mixed."""
    file = shards / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    places = index["weight_map"]
    holder = places[EXPERT]
    other = next(name for name in places.values() if name != holder)
    index["weight_map"] = places | {EXPERT: other}
    file.write_text(json.dumps(index))
    said = complaint(shards)
    assert f"{EXPERT}: is placed in {other}, but {holder} has it" in said
    assert str(file) in said


def test_an_index_may_name_a_tensor_that_no_file_has(shards: Path) -> None:
    """Published ones name the head of a model whose head is its embedding."""
    file = shards / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    places = index["weight_map"]
    index["weight_map"] = places | {"elsewhere.weight": next(iter(places.values()))}
    file.write_text(json.dumps(index))
    open_model(shards)


def test_repeated_keys(shards: Path) -> None:
    index = shards / "model.safetensors.index.json"
    whole = index.read_text()
    index.write_text('{"weight_map": {}, ' + whole.lstrip()[1:])
    assert "weight_map: this key is in the same JSON object twice" in complaint(shards)
    index.write_text(whole)
    config = shards / "config.json"
    config.write_text('{"hidden_size": 64, ' + config.read_text().lstrip()[1:])
    said = complaint(shards, BadConfig)
    assert "hidden_size: this key is in the same JSON object twice" in said
