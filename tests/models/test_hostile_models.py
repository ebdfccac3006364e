"""Is each hostile value of a model's files one message with file and field, at once?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stock
from moesaic.core.errors import BadCheckpoint, BadTokenizer, MoesaicError
from moesaic.model_info.config_reader import MAX_EXPERTS, MAX_LAYERS
from moesaic.models.checkpoints.checkpoint import Checkpoint
from moesaic.models.checkpoints.shard import Shard
from moesaic.models.checkpoints.unread_tensors import _LAYER
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.text.tokenizer import Tokenizer
from small_tokenizers import save, write

DEEP = "[" * 5000 + "]" * 5000
LONG = "9" * 5000
HOSTILE = {"deep": DEEP, "long": LONG, "bytes": "\udcff"}


def config(folder: Path, name: str = "mixtral", **changes: Any) -> Path:
    """A valid config with some fields replaced; a text that begins with = is JSON as it stands."""
    fields = json.loads((stock.saved(name).folder / "config.json").read_text()) | changes
    text = json.dumps(fields)
    for value in changes.values():
        if isinstance(value, str) and value.startswith("="):
            text = text.replace(json.dumps(value), value[1:])
    path = folder / "config.json"
    path.write_text(text)
    return path


def config_refusal(path: Path, field: str) -> str:
    with pytest.raises(MoesaicError) as caught:
        read_architecture(path)
    said = str(caught.value)
    assert said.startswith(f"model config {str(path)!r}: {field}: "), said
    assert len(said) < 1000
    return said


@pytest.mark.parametrize("value", [DEEP, LONG])
def test_configs_that_python_cannot_parse(value: str, tmp_path: Path) -> None:
    config_refusal(config(tmp_path, anything=f"={value}"), "file")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_hidden_layers", 10**8),
        ("num_hidden_layers", MAX_LAYERS + 1),
        ("num_local_experts", MAX_EXPERTS + 1),
        ("max_position_embeddings", 2**63),
        ("hidden_size", 10**30),
        ("vocab_size", 2**40),
        ("rms_norm_eps", 10**35),
        ("rms_norm_eps", 1e-300),
        ("rms_norm_eps", "=1e999"),
        ("rms_norm_eps", "=NaN"),
        ("sliding_window", 2**62),
        ("head_dim", "=Infinity"),
    ],
)
def test_numbers_no_model_has(field: str, value: Any, tmp_path: Path) -> None:
    config_refusal(config(tmp_path, **{field: value}), field)


@pytest.mark.parametrize("value", [2.0**31, "=Infinity", 10**20])
def test_the_share_of_a_head_that_is_rotated(value: Any, tmp_path: Path) -> None:
    path = config(tmp_path, "glm-4.5")
    fields = json.loads(path.read_text())
    fields["rope_parameters"].pop("partial_rotary_factor", None)
    path.write_text(json.dumps(fields | {"partial_rotary_factor": "here"}))
    text = value[1:] if isinstance(value, str) else json.dumps(value)
    path.write_text(path.read_text().replace('"here"', text))
    config_refusal(path, "partial_rotary_factor")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rope_theta", 1.0),
        ("factor", "=Infinity"),
        ("beta_fast", "=1e-320"),
        ("beta_slow", "=1e305"),
        ("original_max_position_embeddings", 10**30),
    ],
)
def test_yarn(field: str, value: Any, tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0} | {field: value}
    text = config(tmp_path, rope_parameters=rope).read_text()
    if isinstance(value, str):
        text = text.replace(json.dumps(value), value[1:])
    (tmp_path / "config.json").write_text(text)
    config_refusal(tmp_path / "config.json", field)


@pytest.mark.parametrize("value", [["fp8"], {"a": 1}, 4, True])
def test_quantized_by_something_without_a_name(value: Any, tmp_path: Path) -> None:
    path = config(tmp_path, quantization_config={"quant_method": value})
    config_refusal(path, "quantization_config.quant_method")


def shard(folder: Path, header: str, data: bytes = bytes(8)) -> Path:
    path = folder / "model.safetensors"
    encoded = header.encode("utf-8", "surrogateescape")
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + data)
    return path


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_shard_headers_that_python_cannot_parse(value: str, tmp_path: Path) -> None:
    path = shard(tmp_path, '{"a": ' + value + "}")
    with pytest.raises(BadCheckpoint, match=r"model.safetensors': header: expected"):
        Shard(path)


@pytest.mark.parametrize(
    ("offsets", "shape", "dtype"),
    [
        ("[0, Infinity]", "[2]", '"F32"'),
        ("[NaN, 8]", "[2]", '"F32"'),
        ("[0, 8]", "[1e999]", '"F32"'),
        ("[0, 8]", "[2.0]", '"F32"'),
        ("[0, 8]", "[true]", '"F32"'),
        ("[0, 24]", "[-2, -3]", '"F32"'),
        ("[0, 8]", "[1, 1, 1, 1, 1, 1, 1, 1, 2]", '"F32"'),
        ("[0, 8]", "[2]", "[]"),
        ("[8, 0]", "[]", '"I8"'),
        ("[0, 170141183460469231731687303715884105727]", "[2]", '"F32"'),
        ("[0, 170141183460469231731687303715884105727]", "[2]", '"X"'),
        ('{"0": 0, "8": 8}', "[2]", '"F32"'),
        ("8", "[2]", '"F32"'),
    ],
)
def test_tensors_that_cannot_be(offsets: str, shape: str, dtype: str, tmp_path: Path) -> None:
    entry = f'{{"dtype": {dtype}, "shape": {shape}, "data_offsets": {offsets}}}'
    with pytest.raises(BadCheckpoint, match=r"model.safetensors': (a|header\.a\.\w+\.\d): "):
        Shard(shard(tmp_path, f'{{"a": {entry}}}', bytes(24)))


@pytest.mark.parametrize(
    "content",
    [
        *(f'{{"weight_map": {{"a": {value}}}}}' for value in (DEEP, LONG, "[]", "1", "null")),
        *(
            f'{{"weight_map": {{"a": "{name}"}}}}'
            for name in ("../x", "/etc/passwd", "a\\u0000", "é" * 128)
        ),
        '{"weight_map": []}',
        '{"weight_map": {"a": "\\ud800"}}',
        "[]",
        "{}",
    ],
)
def test_indices(content: str, tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(content)
    with pytest.raises(BadCheckpoint, match=r"index.json': (file|weight_map|weight_map\.a): "):
        Checkpoint(tmp_path)


def test_a_layer_with_a_number_of_thousands_of_digits() -> None:
    assert _LAYER.match(f"model.layers.{'1' * 5000}.weight") is None
    assert _LAYER.match("model.layers.17.weight") is not None


def tokenizer_refusal(folder: Path, file: str) -> str:
    with pytest.raises(BadTokenizer) as caught:
        Tokenizer.open(folder)
    said = str(caught.value)
    assert said.startswith(f"tokenizer {str(folder / file)!r}: "), said
    assert said.isprintable()
    return said


@pytest.mark.parametrize("file", ["tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("value", [DEEP, LONG, '"\\ud800"'])
def test_files_of_a_tokenizer_that_python_cannot_parse(
    file: str, value: str, tmp_path: Path
) -> None:
    (save(tmp_path, "byte-level") / file).write_text(f'{{"eos_token": {value}}}')
    tokenizer_refusal(tmp_path, file)


@pytest.mark.parametrize("value", [2**31, -(2**40), [2**100], [True], 1.5])
def test_ids_that_no_token_has(value: Any, tmp_path: Path) -> None:
    write(save(tmp_path, "byte-level") / "generation_config.json", {"eos_token_id": value})
    assert "eos_token_id: expected" in tokenizer_refusal(tmp_path, "generation_config.json")


@pytest.mark.parametrize("value", ["x\ud800", {"content": "\udfff"}])
def test_half_a_surrogate_pair_as_a_special_token(value: Any, tmp_path: Path) -> None:
    save(tmp_path, "byte-level", pad_token=value)
    said = tokenizer_refusal(tmp_path, "tokenizer_config.json")
    assert "half of a surrogate pair" in said


def test_a_panic_inside_tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupts and exits, BaseExceptions too, pass."""
    panic = type("PanicException", (BaseException,), {})
    tokenizer = Tokenizer.open(save(tmp_path, "byte-level"))

    class Backend:
        error: BaseException = panic("index out of bounds")

        def encode(self, text: str, add_special_tokens: bool) -> None:
            raise self.error

        def decode(self, ids: list[int], skip_special_tokens: bool) -> None:
            raise self.error

    monkeypatch.setattr(tokenizer, "_backend", Backend())
    with pytest.raises(BadTokenizer, match="cannot encode this text: index out of bounds"):
        tokenizer.encode("a")
    with pytest.raises(BadTokenizer, match="cannot decode these tokens: index out of bounds"):
        tokenizer.decode([1])
    for error in (KeyboardInterrupt, SystemExit):
        monkeypatch.setattr(Backend, "error", error())
        with pytest.raises(error):
            tokenizer.encode("a")
