"""Is everything that cannot be run one clear line, before any weights are read?"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import refused
from safetensors.torch import load_file, save_file

import small_tokenizers
import stock
from chat_models import talking
from moesaic.cli.shared import model_folder
from moesaic.core.errors import CannotFetch
from moesaic.engine import loading
from moesaic.engine.llm import LLM
from moesaic.models import bundled_model

IDS = ("--prompt-ids", "1,2,3")
Refusal = Callable[..., str]


@pytest.fixture
def refusal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """What the command says. Reading weights would fail the test."""

    def forbidden(*args: Any) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loading, "load_decoder", forbidden)
    return lambda *words: refused(monkeypatch, capsys, "run", *words)


def shards(folder: Path) -> list[Path]:
    stock.save(stock.saved("mixtral").model, folder, max_shard_size="30KB")
    return sorted(folder.glob("model-*.safetensors"))


def copy(folder: Path, **config: Any) -> Path:
    """The small Mixtral, with some fields of its config changed."""
    shutil.copytree(stock.saved("mixtral").folder, folder, dirs_exist_ok=True)
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fields | config))
    return folder


def test_a_missing_shard(tmp_path: Path, refusal: Refusal) -> None:
    victim = shards(tmp_path)[1]
    victim.unlink()
    said = refusal(tmp_path, *IDS)
    assert str(victim) in said
    assert "the file is missing" in said


def test_a_truncated_shard(tmp_path: Path, refusal: Refusal) -> None:
    victim = shards(tmp_path)[0]
    victim.write_bytes(victim.read_bytes()[:-1])
    assert "the file is truncated" in refusal(tmp_path, *IDS)


@pytest.mark.parametrize(
    ("tensor", "message"),
    [(None, "lm_head.weight: the tensor is missing"), (torch.zeros(3, 5), "found [3, 5]")],
)
def test_a_tensor_that_is_missing_or_misshapen(
    tmp_path: Path, tensor: torch.Tensor | None, message: str, refusal: Refusal
) -> None:
    weights = copy(tmp_path) / "model.safetensors"
    tensors = load_file(weights)
    del tensors["lm_head.weight"]
    save_file(tensors if tensor is None else tensors | {"lm_head.weight": tensor}, weights)
    assert message in refusal(tmp_path, *IDS)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"model_type": "llama"}, "unsupported architecture 'llama'"),
        ({"model_type": "llama4"}, "'llama4' (its chunked attention"),
        ({"quantization_config": {"quant_method": "hqq"}}, "quantized with 'hqq'"),
    ],
)
def test_a_model_that_cannot_run_here(
    tmp_path: Path, config: dict[str, Any], message: str, refusal: Refusal
) -> None:
    assert message in refusal(copy(tmp_path, **config), *IDS)


OPTIONS = [
    (("--prompt-ids", ",".join("1" * 256)), "the prompt has 256 tokens"),
    (("--prompt-ids", "1,2,3,4", "--max-model-len", 4), "the prompt has 4 tokens"),
    (("--prompt-ids", "1,97"), "token id 97"),
    (("--prompt-ids", "1;2"), "--prompt-ids is '1;2'; expected token ids"),
    ((*IDS, "-p", "text"), "--prompt-ids and --prompt were given"),
    (("-p", ""), "the prompt given with -p is empty"),
    (("-p", "text", "-p", ""), "the prompt given with -p is empty"),
    (("-f", "absent.txt"), "--file 'absent.txt': No such file"),
    ((*IDS, "-f", "absent.txt"), "--prompt-ids and --file were given"),
    ((*IDS, "--chat"), "--prompt-ids and --chat were given"),
    (("-p", "text"), "has no tokenizer.json"),
    ((*IDS, "--stop", "x"), "has no tokenizer.json"),
    ((*IDS, "--max-model-len", 1000), "can run at most 256"),
    (
        (*IDS, "--accelerator", "emulated", "--gpu-memory", 0.00001),
        "in the accelerator: dense weights",
    ),
    ((*IDS, "--schedule", "gpu-only"), "there is none: add --accelerator emulated"),
    ((*IDS, "--schedule", "best-spilt"), "Did you mean 'best-split'?"),
    ((*IDS, "--cache", "belady"), "must know the future"),
    ((*IDS, "--policies", "hybridmoe"), "Did you mean 'hybrimoe'?"),
    ((*IDS, "--dtype", "int4"), "unknown dtype 'int4'"),
    ((*IDS, "--expert-dtype", "int5"), "unknown expert dtype 'int5'"),
    ((*IDS, "--cache-ratio", 0.5), "there is no accelerator"),
    ((*IDS, "--threads", 0), "threads is 0"),
    ((*IDS, "--temperature", -1), "temperature is -1"),
    ((*IDS, "--max-tokens", 0), "max_tokens is 0"),
    ((*IDS, "--logprobs", 1), "--logprobs 1 is printed as JSON only"),
    ((*IDS, "--record", "absent/t.moet"), "there is no directory 'absent'"),
    ((*IDS, "--record", "t.npz"), "traces are written as .moet"),
]


@pytest.mark.parametrize(("words", "message"), OPTIONS, ids=lambda value: str(value)[:40])
def test_options_that_cannot_be(
    words: tuple[object, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Refusal,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert message in refusal(stock.saved("mixtral").folder, *words)
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_is_no_directory(tmp_path: Path, refusal: Refusal) -> None:
    assert "there is no directory 'absent'" in refusal("absent", *IDS)
    assert "config.json" in refusal(tmp_path, *IDS)
    config = stock.saved("mixtral").folder / "config.json"
    said = refusal(config, *IDS)
    assert "is a file; a model that runs is a directory" in said
    assert f"is it {str(config.parent)!r}?" in said


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("m.gguf", "magic: this is not a GGUF file"),
        ("pytorch_model.bin", "save_pretrained(NEW_FOLDER)"),
        ("model.safetensors", "is it "),
    ],
)
def test_weights_in_another_form_say_what_to_do(
    name: str, words: str, tmp_path: Path, refusal: Refusal
) -> None:
    (tmp_path / name).write_bytes(b"weights")
    assert words in refusal(tmp_path / name, *IDS)


def test_a_directory_of_pickled_weights_says_how_to_convert_them(
    tmp_path: Path, refusal: Refusal
) -> None:
    (copy(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    said = refusal(tmp_path, *IDS)
    assert "found pytorch_model.bin: PyTorch's pickled weights are not read: convert it" in said


def test_an_id_of_the_hub_is_fetched_and_says_why_it_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refusal: Refusal
) -> None:
    """Offline, as all tests are; a hub that answers: test_hub_commands.py."""
    hub_id = "Qwen/Qwen3-30B-A3B"
    offline = "HF_HUB_OFFLINE forbids fetching it"
    assert offline in refusal(hub_id, *IDS)
    said = refused(monkeypatch, capsys, "plan", hub_id)
    assert offline in said
    assert "its shape is known without: qwen3-30b-a3b" in said
    with pytest.raises(CannotFetch, match=offline):
        LLM(hub_id)


def test_a_path_is_no_id_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    assert "there is no directory 'models/absent'" in refusal("models/absent", *IDS)


@pytest.mark.parametrize("prompt", ["Who is older?", "The sun rises", "Why?"])
def test_a_prompt_where_the_model_is_named(prompt: str, refusal: Refusal) -> None:
    assert f"`moesaic run -p {shlex.quote(prompt)}`" in refusal(prompt)


def test_a_stripped_installation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Refusal
) -> None:
    monkeypatch.setattr(bundled_model, "_FOLDER", tmp_path)
    assert "install the package again" in refusal("-p", "Hello")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch, refusal: Refusal) -> None:
    monkeypatch.setattr(model_folder, "find_spec", lambda package: None)
    assert "pip install 'moesaic[engine]'" in refusal(stock.saved("mixtral").folder, *IDS)


def test_a_known_name_needs_weights(refusal: Refusal) -> None:
    said = refusal("mixtral-8x7b", *IDS)
    assert "needs its weights" in said
    assert "`moesaic plan mixtral-8x7b`" in said
    assert "`moesaic bench --synthetic mixtral-8x7b`" in said


def test_text_without_a_template_is_no_conversation(tmp_path: Path, refusal: Refusal) -> None:
    shutil.copytree(talking().folder, tmp_path, dirs_exist_ok=True)
    small_tokenizers.write(tmp_path / "tokenizer_config.json", {"eos_token": "</s>"})
    assert "has no chat template" in refusal(tmp_path, "--chat", "-p", "Hello")


def test_a_file_that_is_not_text_is_named_with_the_place(tmp_path: Path, refusal: Refusal) -> None:
    (tmp_path / "menu.txt").write_bytes(b"tea\ncaf\xe9 and more")
    said = refusal(talking().folder, "-f", tmp_path / "menu.txt")
    assert "menu.txt' is not valid UTF-8: byte 0xe9 in line 2 (offset 7)" in said


@pytest.mark.parametrize(
    ("piped", "message"),
    [(b"", "is empty"), (b"caf\xe9 and more", "not valid UTF-8: byte 0xe9 after 'caf'")],
)
def test_a_pipe_without_text(
    piped: bytes,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refusal: Refusal,
) -> None:
    (tmp_path / "piped").write_bytes(piped)
    with (tmp_path / "piped").open() as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        assert message in refusal(talking().folder)
