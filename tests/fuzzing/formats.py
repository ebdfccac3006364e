"""The files Moesaic reads, for fuzzing: of each a valid example, its mutations, and the reader."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from fuzzing.examples import (
    calibration,
    configs,
    npz,
    packed_header,
    shard_header,
    template,
    tokenizer,
    trace,
)
from fuzzing.gguf import gguf_pieces
from fuzzing.mutations import (
    mutate_bytes,
    mutate_json,
    mutate_pieces,
    mutate_template,
    mutate_toml,
)
from fuzzing.quantized import EXAMPLES
from moesaic.core.errors import MoesaicError
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.evaluation.input_files import Unfit, read_lines
from moesaic.machines.sim.dram.timing_file import load_timing
from moesaic.model_info.model_config import open_config
from moesaic.model_info.packed.header import DATA_START, EXPERTS, MAGIC, VERSION, read_header
from moesaic.model_info.quantization.read import read_quantization
from moesaic.models.checkpoints.checkpoint import Checkpoint
from moesaic.models.checkpoints.quantized.checkpoint import QuantizedCheckpoint
from moesaic.models.configs.network_reader import read_architecture
from moesaic.models.open_model import open_model, readable_experts
from moesaic.models.text.template_child import _compile, _render
from moesaic.models.text.tokenizer import Tokenizer
from moesaic.policies.quality_levels import FORMAT, quality_level
from moesaic.workloads.format import CRC, PREAMBLE, crc32
from moesaic.workloads.npz_trace import open_npz
from moesaic.workloads.reader import TraceReader
from moesaic.workloads.synthetic.calibration import load_calibration


class Format(NamedTuple):
    """`write` puts a mutated file into an empty folder, `read` reads what is there; it may raise
    MoesaicError and nothing else."""

    write: Callable[[Path, random.Random], None]
    read: Callable[[Path], object]


def _json_file(name: str, *examples: Any) -> Callable[[Path, random.Random], None]:
    def write(folder: Path, rng: random.Random) -> None:
        example = rng.choice(examples)
        plain = rng.random() < 0.3
        content = json.dumps(example).encode()
        mutated = mutate_bytes(content, rng) if plain else mutate_json(example, rng)
        (folder / name).write_bytes(mutated)

    return write


def _toml_file(name: str, package: str) -> Callable[[Path, random.Random], None]:
    data = files(package) / "data"
    texts = sorted(each.read_text() for each in data.iterdir() if each.name.endswith(".toml"))

    def write(folder: Path, rng: random.Random) -> None:
        text = rng.choice(texts)
        plain = rng.random() < 0.3
        mutated = mutate_bytes(text.encode(), rng) if plain else mutate_toml(text, rng)
        (folder / name).write_bytes(mutated)

    return write


def _write_trace(folder: Path, rng: random.Random) -> None:
    """Headers with a checksum that fits, so that they are read."""
    content = trace()
    if rng.random() < 0.3:
        (folder / "trace").write_bytes(mutate_bytes(content, rng))
        return
    magic, version, length = PREAMBLE.unpack_from(content)
    begin = PREAMBLE.size + CRC.size
    header = mutate_json(json.loads(content[begin : begin + length]), rng)
    preamble = PREAMBLE.pack(magic, version, len(header))
    whole = preamble + crc32(preamble, header) + header + content[begin + length :]
    (folder / "trace").write_bytes(whole)


def _read_trace(folder: Path) -> None:
    with TraceReader(folder / "trace") as reader:
        for _ in reader:
            pass
        reader.header.to_json()


def _write_shard(folder: Path, rng: random.Random) -> None:
    fields, data = shard_header()
    plain = json.dumps(fields).encode()
    header = mutate_bytes(plain, rng) if rng.random() < 0.3 else mutate_json(fields, rng)
    length = struct.pack("<Q", len(header))
    length = mutate_bytes(length, rng) if rng.random() < 0.1 else length
    (folder / "model.safetensors").write_bytes(length + header + data)


def _read_checkpoint(folder: Path) -> None:
    checkpoint = Checkpoint(folder)
    for name in checkpoint.unread():
        checkpoint.read(name, (2, 3))


def _write_quantized(folder: Path, rng: random.Random) -> None:
    """The config, the table of tensors or their numbers changed. `which` says what to read."""
    number = rng.randrange(len(EXAMPLES))
    example = EXAMPLES[number]
    (folder / "which").write_text(str(number))
    config, fields, data = {"quantization_config": example.config}, example.header(), example.data()
    written, header = json.dumps(config).encode(), json.dumps(fields).encode()
    match rng.randrange(4):
        case 0:
            written = mutate_json(config, rng)
        case 1:
            data = mutate_bytes(data, rng)
        case 2:
            header = mutate_bytes(header, rng)
        case _:
            header = mutate_json(fields, rng)
    (folder / "config.json").write_bytes(written)
    content = struct.pack("<Q", len(header)) + header + data
    (folder / "model.safetensors").write_bytes(content)


def _read_quantized(folder: Path) -> None:
    example = EXAMPLES[int((folder / "which").read_text())]
    form = read_quantization(open_config(folder))
    if form is None:
        return
    checkpoint = QuantizedCheckpoint(Checkpoint(folder), form)
    if len(example.shape) == 2:
        checkpoint.read(example.name, example.shape)
    else:
        checkpoint.read_part(example.name, example.shape, 1)
    checkpoint.unread()


def _write_index(folder: Path, rng: random.Random) -> None:
    fields, data = shard_header()
    header = json.dumps(fields).encode()
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    index = {"metadata": {"total_size": 48}, "weight_map": dict.fromkeys(fields, "a.safetensors")}
    _json_file("model.safetensors.index.json", index)(folder, rng)


def _read_config(folder: Path) -> None:
    spec = read_architecture(folder).spec
    spec.expert_bytes("bf16")
    assert spec.total_params > 0


def _write_tokenizer(folder: Path, rng: random.Random) -> None:
    whole = tokenizer()
    changed = rng.choice(list(whole))
    for name, fields in whole.items():
        (folder / name).write_text(json.dumps(fields))
    _json_file(changed, whole[changed])(folder, rng)


def _read_tokenizer(folder: Path) -> None:
    made = Tokenizer.open(folder)
    made.decode(made.encode("a word, <s> é"))


def _write_gguf(folder: Path, rng: random.Random) -> None:
    """Headers are most of such a small file, so that changed bytes are in them too."""
    pieces = gguf_pieces(rng.choice(("gpt2", "llama")))
    plain = rng.random() < 0.3
    content = mutate_bytes(b"".join(pieces), rng) if plain else mutate_pieces(pieces, rng)
    (folder / "m.gguf").write_bytes(content)


def _read_gguf(folder: Path) -> None:
    """Tokenizer and tensors, each of them although the other may be refused."""
    refused = []
    for read in (_read_gguf_tokenizer, _read_gguf_experts):
        try:
            read(folder / "m.gguf")
        except MoesaicError as error:
            refused.append(error)
    if refused:
        raise refused[0]


def _read_gguf_tokenizer(file: Path) -> None:
    made = Tokenizer.open(file)
    made.decode(made.encode("ab a <s> é"))


def _read_gguf_experts(file: Path) -> None:
    for _ in readable_experts(open_model(file)):
        pass


def _write_template(folder: Path, rng: random.Random) -> None:
    (folder / "template").write_bytes(mutate_template(template(), rng))


def _read_template(folder: Path) -> None:
    """As the process does that renders them; to start one per file would take hours."""
    made = _compile((folder / "template").read_bytes().decode(errors="replace"))
    if not isinstance(made, dict):
        messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "ho"}]
        _render(made, {"messages": messages, "bos_token": "<s>"}, 10_000)


def _read_lines(folder: Path) -> None:
    for line in read_lines(folder / "a.jsonl"):
        try:
            line.text("question")
        except Unfit:
            continue


def _write_npz(folder: Path, rng: random.Random) -> None:
    (folder / "model_decode.npz").write_bytes(mutate_bytes(npz(), rng))


def _write_packed(folder: Path, rng: random.Random) -> None:
    """Headers with a checksum that fits, so that they are read; the blocks are a hole."""
    fields = packed_header()
    content = json.dumps(fields).encode()
    header = mutate_bytes(content, rng) if rng.random() < 0.3 else mutate_json(fields, rng)
    start = struct.pack("<8sII", MAGIC, VERSION, len(header))
    start = mutate_bytes(start, rng) if rng.random() < 0.1 else start
    whole = start + header
    with (folder / EXPERTS).open("wb") as file:
        file.write(whole + sha256(whole).digest())
        size = DATA_START + fields["layers"] * fields["experts"] * fields["block_bytes"]
        file.truncate(size)


QUESTION = {"question": "What is 1 + 1?", "answer": "2"}
QUALITY = {"format": FORMAT, "gate": "full", "cost": "none", "measured_on": "x", "model": "y"}


@cache
def formats() -> dict[str, Format]:
    return {
        "trace": Format(_write_trace, _read_trace),
        "npz": Format(_write_npz, lambda folder: open_npz(folder / "model_decode.npz")),
        "shard": Format(_write_shard, _read_checkpoint),
        "index": Format(_write_index, _read_checkpoint),
        "quantized": Format(_write_quantized, _read_quantized),
        "config": Format(_json_file("config.json", *configs()), _read_config),
        "tokenizer": Format(_write_tokenizer, _read_tokenizer),
        "gguf": Format(_write_gguf, _read_gguf),
        "template": Format(_write_template, _read_template),
        "packed": Format(_write_packed, lambda folder: read_header(folder).bytes),
        "machine": Format(
            _toml_file("m.toml", "moesaic.hardware"),
            lambda folder: load_machine(str(folder / "m.toml")).topology(),
        ),
        "timing": Format(
            _toml_file("t.toml", "moesaic.machines.sim.dram"),
            lambda folder: load_timing(str(folder / "t.toml")),
        ),
        "calibration": Format(
            _json_file("c.json", calibration()),
            lambda folder: load_calibration(str(folder / "c.json")),
        ),
        "quality": Format(
            _json_file("q.json", QUALITY), lambda folder: quality_level(str(folder / "q.json"))
        ),
        "questions": Format(_json_file("a.jsonl", QUESTION), _read_lines),
    }
