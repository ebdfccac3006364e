"""Does every way a GGUF file can be wrong give one message with file and field?"""

from __future__ import annotations

import random
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import gguf
import numpy as np
import pytest

import gguf_models
import stock
from moesaic.core.errors import BadCheckpoint, BadConfig, MoesaicError
from moesaic.model_info.gguf.header import read_header
from moesaic.model_info.model_config import read_model_config
from moesaic.models.open_model import open_model

U64 = struct.Struct("<Q")


@cache
def whole() -> bytes:
    """A model of qwen3moe as a file's content."""
    with TemporaryDirectory() as folder:
        model = stock.save(stock.saved("qwen3-moe").model, Path(folder) / "checkpoint")
        return gguf_models.convert(model, Path(folder) / "model.gguf").read_bytes()


def complaint(file: Path, content: bytes) -> str:
    file.write_bytes(content)
    with pytest.raises(MoesaicError) as caught:
        open_model(file)
    assert str(file) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("keep", [0, 3, 4, 7, 8, 15, 23, 24, 40, 500, 0.3, 0.6, 0.9, -1, -33])
def test_a_truncated_file(file: Path, keep: float) -> None:
    end = keep if isinstance(keep, int) else int(len(whole()) * keep)
    said = complaint(file, whole()[:end])
    assert "truncated" in said or "this is not a GGUF file" in said


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"GGML" + bytes(60), "magic: this is not a GGUF file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "magic: this is not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(60), "version: GGUF version 1 is not supported"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(60), "version: the file is big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0), "tensor_count: expected at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1), "metadata_kv_count: expected at most"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1000, 0), "tensor_count: the file is truncated"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 0), "general.architecture: is missing"),
    ],
)
def test_a_wrong_beginning(file: Path, content: bytes, said: str) -> None:
    assert said in complaint(file, content)


def made(metadata: bytes = b"", keys: int = 0, tensors: bytes = b"", count: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, count, keys) + metadata + tensors + bytes(256)


def text(content: bytes) -> bytes:
    return U64.pack(len(content)) + content


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def tensor(name: bytes, sizes: list[int], kind: int = 0, offset: int = 0) -> bytes:
    shape = struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes)
    return text(name) + shape + struct.pack("<IQ", kind, offset)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (made(U64.pack(2**40), 1), "key 0 of the metadata: expected a text of at most"),
        (made(key(b"a", 8, U64.pack(2**62)), 1), "a: expected a text of at most"),
        (made(key(b"a", 8, U64.pack(1000)), 1), "a: the file is truncated"),
        (made(key(b"a", 8, text(b"\xff\xfe")), 1), "a: expected UTF-8"),
        (made(key(b"a", 13, b""), 1), "a: unknown value type 13"),
        (made(key(b"a", 7, b"\x02"), 1), "a: expected 0 or 1"),
        (made(key(b"a", 6, struct.pack("<f", float("nan"))), 1), "a: expected finite"),
        (made(key(b"a", 9, struct.pack("<IQ", 4, 2**61)), 1), "a: .* array elements are more"),
        (made(key(b"a", 9, struct.pack("<IQ", 4, 10**6)), 1), "a: the file is truncated"),
        (made(key(b"a", 9, struct.pack("<IQ", 9, 1)), 1), "a: an array of value type 9"),
        (made(key(b"a", 7, b"\x01") * 2, 2), "a: is in the metadata twice"),
        (made(tensors=tensor(b"w", []), count=1), "w: expected 1 to 4 dimensions, not 0"),
        (made(tensors=tensor(b"w", [1] * 5), count=1), "w: expected 1 to 4 dimensions, not 5"),
        (made(tensors=tensor(b"w", [4, 0]), count=1), "w: expected dimensions of 1 or more"),
        (made(tensors=tensor(b"w", [2**63, 2**63]), count=1), "w: its data ends at byte"),
        (made(tensors=tensor(b"w", [4], 77), count=1), "w: stored as unknown tensor type 77"),
        (made(tensors=tensor(b"w", [4], 10), count=1), "w: stored as Q2_K, which cannot be read"),
        (made(tensors=tensor(b"w", [4], 8), count=1), "w: rows of 4 weights are no whole blocks"),
        (made(tensors=tensor(b"w", [4], 0, 2**64 - 32), count=1), "w: its data ends at byte"),
        (made(tensors=tensor(b"w", [4], 0, 4), count=1), "w: offset 4 is no multiple of 32"),
        (made(tensors=tensor(b"w", [4]) * 2, count=2), "w: is in the table of tensors twice"),
        (made(tensors=tensor(b"v", [4]) + tensor(b"w", [4]), count=2), "w: its data overlaps"),
        (
            made(tensors=tensor(b"v", [4], 0, 32) + tensor(b"w", [4]), count=2),
            "v: its data begins at byte [0-9]+, expected [0-9]+: tensors follow each other",
        ),
        (
            made(tensors=tensor(b"v", [4]) + tensor(b"w", [4], 0, 64), count=2),
            "w: its data begins at byte 160, expected 128",
        ),
        (
            made(key(b"general.alignment", 4, struct.pack("<I", 0)), 1),
            "general.alignment: expected a multiple of 8",
        ),
        (
            made(key(b"general.alignment", 8, text(b"32")), 1),
            "general.alignment: expected a multiple of 8",
        ),
    ],
)
def test_a_hostile_header(file: Path, content: bytes, said: str) -> None:
    file.write_bytes(content)
    with pytest.raises(BadCheckpoint, match=said):
        read_header(file)


def test_headers_take_bounded_memory(file: Path) -> None:
    """A sparse file of 8 GiB that claims to be one text, or one array."""
    for start in (key(b"a", 8, U64.pack(2**32)), key(b"a", 9, struct.pack("<IQ", 0, 2**32))):
        with file.open("wb") as out:
            out.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + start)
            out.truncate(2**33)
        tracemalloc.start()
        with pytest.raises(BadCheckpoint):
            read_header(file)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
        tracemalloc.stop()


Change = Callable[[gguf.GGUFWriter], object]


def _set(name: str, value: Any) -> Change:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0][f"qwen3moe.{name}"].value = value

    return change


def _drop(name: str) -> Change:
    return lambda writer: writer.kv_data[0].pop(f"qwen3moe.{name}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_drop("block_count"), "qwen3moe.block_count: is missing"),
        (_drop("embedding_length"), "qwen3moe.embedding_length: is missing"),
        (_drop("attention.head_count"), "qwen3moe.attention.head_count: is missing"),
        (_drop("attention.layer_norm_rms_epsilon"), "layer_norm_rms_epsilon: is missing"),
        (_drop("context_length"), "qwen3moe.context_length: is missing"),
        (_drop("expert_count"), "qwen3moe.expert_count: expected routed experts"),
        (_drop("expert_used_count"), "qwen3moe.expert_used_count: is missing"),
        (_drop("expert_feed_forward_length"), "expert_feed_forward_length: is missing"),
        (_set("block_count", 10**8), "qwen3moe.block_count: 100000000 layers in a file of"),
        (_set("context_length", 2**32 - 1), "qwen3moe.context_length: expected at most"),
        (_set("expert_used_count", 13), "qwen3moe.expert_used_count: expected at most 12"),
        (_set("attention.head_count_kv", 3), "head_count_kv: expected a divisor of 4"),
        (_set("attention.value_length", 8), "value_length: expected 16"),
        (_set("rope.freq_base", 0.5), "qwen3moe.rope.freq_base: expected a number of 1"),
        (_set("rope.scaling.factor", 0.5), "qwen3moe.rope.scaling.factor: expected a number"),
        (_set("rope.scaling.type", "longrope"), "rope.scaling.type: expected one of none, linear"),
        (lambda w: w.add_vocab_size(96), "qwen3moe.vocab_size: expected 97"),
        (lambda w: w.add_rope_dimension_count(8), "rope.dimension_count: expected the head's 16"),
        (lambda w: w.add_expert_weights_scale(2.5), "expert_weights_scale: expected 1"),
        (lambda w: w.add_expert_weights_norm(False), "expert_weights_norm: expected True"),
        (lambda w: w.add_expert_group_count(4), "expert_group_count: expected no groups"),
        (lambda w: w.add_causal_attention(False), "attention.causal: expected true"),
        (lambda w: w.add_sliding_window(64), "sliding_window: 64 is not understood"),
        (lambda w: w.add_attention_scale(0.3), "attention.scale: 0.3.* is not understood"),
        (lambda w: w.add_rope_scaling_yarn_attn_factor(1.5), "attn_factor: 1.5 is not under"),
        (lambda w: w.add_type("adapter"), "general.type: expected 'model', not 'adapter'"),
        (
            lambda w: w.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID),
            "expert_gating_func: expected 1",
        ),
    ],
)
def test_keys_that_are_missing_or_not_understood(tmp_path: Path, change: Change, said: str) -> None:
    folder = stock.saved("qwen3-moe").folder
    with pytest.raises(BadConfig, match=said):
        open_model(gguf_models.convert(folder, tmp_path / "model.gguf", add=change))


def test_a_key_for_each_layer(tmp_path: Path) -> None:
    folder = stock.saved("qwen3-moe").folder

    def with_heads(*heads: int) -> Path:
        def change(writer: gguf.GGUFWriter) -> None:
            del writer.kv_data[0]["qwen3moe.attention.head_count_kv"]
            writer.add_head_count_kv(list(heads))

        return gguf_models.convert(folder, tmp_path / "model.gguf", add=change)

    assert read_model_config(with_heads(2, 2, 2)).num_kv_heads == 2
    with pytest.raises(BadConfig, match="head_count_kv: differs from layer to layer"):
        read_model_config(with_heads(2, 4, 2))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gemma3", "'gemma3' is a dense model: it has no experts"),
        ("qwen3next", r"not supported as GGUF, but as safetensors \(qwen3_next\); supported: "),
    ],
)
def test_an_architecture_we_do_not_run(tmp_path: Path, name: str, said: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", name)
    writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadConfig, match=said):
        open_model(tmp_path / "a.gguf")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"blk.1.attn_k.weight", b"blk.1.attn_z.weight", "blk.1.attn_k.weight: the tensor is mis"),
        (b"blk.2.ffn_up_exps", b"blk.2.ffn_up_expz", "blk.2.ffn_up_exps.weight: the tensor is mis"),
    ],
)
def test_a_missing_tensor(file: Path, old: bytes, new: bytes, said: str) -> None:
    assert said in complaint(file, whole().replace(old, new))


def test_a_tensor_nothing_uses(tmp_path: Path) -> None:
    def add(writer: gguf.GGUFWriter) -> None:
        writer.add_tensor("rope_freqs.weight", np.ones(8, np.float32))

    folder = stock.saved("qwen3-moe").folder
    with pytest.raises(BadCheckpoint, match=r"rope_freqs.weight: nothing in qwen3_moe as its meta"):
        open_model(gguf_models.convert(folder, tmp_path / "model.gguf", add=add))


def test_damaged_at_random(file: Path) -> None:
    """A sample: whatever byte is wrong, the file opens or is refused, and nothing else."""
    generator = random.Random(7)
    header = whole().index(b"output_norm.weight") + 200
    for _ in range(150):
        content = bytearray(whole())
        for _ in range(generator.choice((1, 1, 2, 8))):
            place = generator.randrange(header)
            content[place] = generator.choice((0, 1, 0x7F, 0xFF, generator.randrange(256)))
        file.write_bytes(content)
        with suppress(MoesaicError):
            open_model(file)
