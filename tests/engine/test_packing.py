"""Is a packed model the same model, there whole or not at all?"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import quantized_models
import stock
from moesaic import LLM, SamplingParams
from moesaic.core.errors import BadCheckpoint, ImpossibleSetting
from moesaic.engine.engine_settings import EngineSettings
from moesaic.engine.packing import plan_packing
from moesaic.lab.bench.bench_model import from_folder, load_bench_model
from moesaic.model_info.packed.header import DENSE, EXPERTS, read_header
from moesaic.models.open_model import open_model
from packed_models import packed
from quantized_models import FORMS
from stock_text import prompt

GREEDY = SamplingParams(max_tokens=12, temperature=0.0)
SMALL: dict[str, Any] = {"threads": 1, "max_sequences": 1, "max_model_len": 64}


def text(folder: Path, **options: Any) -> tuple[int, ...]:
    with LLM(folder, **SMALL, **options) as model:
        return model.generate([prompt(9)], GREEDY)[0].tokens


@pytest.mark.parametrize("family", list(stock.FAMILIES))
@pytest.mark.parametrize("expert_dtype", ["auto", "int4"])
def test_weights_are_those_that_would_be_loaded(
    family: str, expert_dtype: str, tmp_path: Path
) -> None:
    """The blocks of the source as they would be packed while loading, and all other tensors bit by
    bit."""
    source = stock.saved(family).folder
    copy = packed(source, tmp_path / "packed", expert_dtype)
    ours, theirs = (blocks(folder, expert_dtype) for folder in (copy, source))
    assert torch.equal(ours, theirs)
    kept = load_file(copy / DENSE)
    for name, tensor in load_file(source / DENSE).items():
        if ".experts." in name:
            assert name not in kept
        else:
            assert torch.equal(kept[name], tensor), name


def test_a_quantized_checkpoint_is_packed_as_what_its_numbers_mean(tmp_path: Path) -> None:
    """The packed files are no longer quantized as the source's config says."""
    pair = quantized_models.write(stock.saved("qwen3-moe").folder, tmp_path, FORMS["fp8"])
    copy = packed(pair.quantized, tmp_path / "packed", "int8")
    assert torch.equal(blocks(copy, "int8"), blocks(pair.values, "int8"))
    assert "quantization_config" not in json.loads((copy / "config.json").read_text())
    expected = load_file(pair.values / DENSE)
    for name, tensor in load_file(copy / DENSE).items():
        assert torch.equal(tensor, expected[name]), name


def blocks(folder: Path, expert_dtype: str) -> torch.Tensor:
    dtype = "fp32" if expert_dtype == "auto" else expert_dtype
    store = load_bench_model(from_folder(folder), "fp32", dtype).store
    return torch.stack([store.rows(layer) for layer in range(store.layers)])


def test_text_is_that_of_the_source_however_experts_are_opened(tmp_path: Path) -> None:
    source = stock.saved("olmoe").folder
    copy = packed(source, tmp_path / "packed", "int8")
    expected = text(source, expert_dtype="int8")
    assert text(copy) == expected
    assert text(copy, mmap=False) == expected
    assert text(copy, accelerator="emulated", cache_ratio=0.25, checked=True) == expected


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    def interrupt(experts: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        packed(stock.saved("mixtral").folder, tmp_path / "packed", advance=interrupt)
    assert os.listdir(tmp_path) == []


def test_a_full_disk_names_the_directory_and_leaves_nothing(tmp_path: Path) -> None:
    """The system's own limit on the size of a file stands in for the disk's."""
    target, before = tmp_path / "packed", resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((2 << 20) + 100, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            packed(stock.saved("mixtral").folder, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.filename == str(target)
    assert os.listdir(tmp_path) == []


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / ".packed.abcd" / "new"
    left.mkdir(parents=True)
    (left / EXPERTS).write_bytes(b"half")
    os.utime(left.parent, (0, 0))
    packed(stock.saved("mixtral").folder, tmp_path / "packed")
    assert os.listdir(tmp_path) == ["packed"]


def test_the_fingerprint_is_that_of_the_source(tmp_path: Path) -> None:
    source = stock.saved("mixtral").folder
    other = shutil.copytree(source, tmp_path / "other")
    first, again = (
        read_header(packed(folder, tmp_path / name)).fingerprint
        for folder, name in ((source, "a"), (other, "b"))
    )
    assert first == again
    (other / "generation_config.json").write_text('{"eos_token_id": 3}')
    assert read_header(packed(other, tmp_path / "c")).fingerprint != first


def refusal(source: Path, target: Path, expert_dtype: str = "auto") -> str:
    with pytest.raises(ImpossibleSetting) as caught:
        plan_packing(open_model(source), source, target, EngineSettings(expert_dtype=expert_dtype))
    return str(caught.value)


def test_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = stock.saved("mixtral").folder
    copy = packed(source, tmp_path / "packed", "int8")
    assert "is there already" in refusal(source, copy)
    assert "is packed" in refusal(copy, tmp_path / "again")
    assert "there is no directory" in refusal(source, tmp_path / "a" / "b")
    full = SimpleNamespace(total=100, used=100, free=12345)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: full)
    said = refusal(source, tmp_path / "again")
    assert "0.00 GB free" in said
    assert "make room" in said
    assert os.listdir(tmp_path) == ["packed"]


@pytest.mark.parametrize("what", ["here", "mount"])
def test_a_directory_that_cannot_be_replaced_is_refused_first(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All would be written when the renaming fails, or takes the directory away under a shell."""
    source, target = stock.saved("mixtral").folder, tmp_path / "empty"
    target.mkdir()
    if what == "here":
        monkeypatch.chdir(target)
        target = Path()
    else:
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == target)
    assert "cannot be replaced: give a new name in it" in refusal(source, target)


def test_a_link_leads_to_where_the_model_is_written(tmp_path: Path) -> None:
    large, link = tmp_path / "large", tmp_path / "link"
    large.mkdir()
    link.symlink_to(large)
    packed(stock.saved("mixtral").folder, link)
    assert link.is_symlink()
    assert (large / EXPERTS).is_file()


def test_what_running_refuses_is_not_packed(tmp_path: Path) -> None:
    """A head that is not the embedding's copy would be left out unnoticed."""
    source = shutil.copytree(stock.saved("mixtral-tied").folder, tmp_path / "source")
    tensors = load_file(source / DENSE)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] + 1
    save_file(tensors, source / DENSE)
    with pytest.raises(BadCheckpoint, match="tie_word_embeddings is true"):
        packed(source, tmp_path / "packed")


def test_files_that_running_does_not_read_are_none_of_packing(tmp_path: Path) -> None:
    source = shutil.copytree(stock.saved("mixtral").folder, tmp_path / "source")
    (source / "consolidated.safetensors").write_text("version https://git-lfs.github.com/spec/v1")
    (source / "original.safetensors").symlink_to("nowhere")
    packed(source, tmp_path / "packed")


def test_another_precision_than_the_packed_one_is_refused(tmp_path: Path) -> None:
    copy = packed(stock.saved("mixtral").folder, tmp_path / "packed", "int4")
    with pytest.raises(ImpossibleSetting, match="packed with int4 ones"):
        LLM(copy, expert_dtype="int8")


def test_mmap_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(ImpossibleSetting, match="about packed models"):
        LLM(stock.saved("mixtral").folder, mmap=False)
