"""Moves a checkpoint between machines in files of limited size.

`python -m training.carry split RUN FOLDER` writes parts, `join FOLDER RUN` puts them together.
Weights travel as bf16, as they will be published, and optimisers stay behind: a run that goes on
from such a checkpoint warms up again, and a few steps later is where it was. bf16 is packed as two
planes of bytes: signs and exponents repeat, and shrink by half.
"""

from __future__ import annotations

import argparse
import json
import lzma
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from moesaic.core.errors import BadCheckpoint, ImpossibleSetting
from training.checkpoint import Checkpoint, position_of, read_checkpoint
from training.command import run_command
from training.recipe import recipe_of

PART_BYTES = 15 << 20
_NAME = "carried-{number:02d}-of-{count:02d}.bin"
_HEADER = 8  # bytes that say how long the JSON before the weights is


def split(run: Path, folder: Path, part_bytes: int = PART_BYTES) -> list[Path]:
    payload = _pack(read_checkpoint(run))
    pieces = [payload[at : at + part_bytes] for at in range(0, len(payload), part_bytes)]
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, piece in enumerate(pieces):
        path = folder / _NAME.format(number=number, count=len(pieces))
        path.write_bytes(piece)
        paths.append(path)
    return paths


def join(folder: Path, run: Path) -> None:
    found = sorted(folder.glob("carried-*-of-*.bin"))
    if not found:
        raise ImpossibleSetting(f"no carried-*.bin in {str(folder)!r}: split a checkpoint first.")
    count = int(found[0].stem[-2:])
    wanted = [folder / _NAME.format(number=number, count=count) for number in range(count)]
    if found != wanted:
        raise ImpossibleSetting(
            f"{str(folder)!r} does not hold the {count} parts of one checkpoint, but "
            f"{', '.join(path.name for path in found)}: bring all of them, and no others."
        )
    _unpack(b"".join(path.read_bytes() for path in wanted), folder).write(run)


def _pack(checkpoint: Checkpoint) -> bytes:
    head = json.dumps({"recipe": checkpoint.recipe.as_dict(), **checkpoint.place()}).encode()
    weights = {name: value.to(torch.bfloat16) for name, value in checkpoint.weights.items()}
    body = len(head).to_bytes(_HEADER, "little") + head + save(weights)
    planes = np.frombuffer(body + bytes(len(body) % 2), np.uint8).reshape(-1, 2).T
    packed = b"".join(_with_length(lzma.compress(plane.tobytes(), preset=1)) for plane in planes)
    return sha256(packed).digest() + packed


def _unpack(payload: bytes, source: Path) -> Checkpoint:
    digest, packed = payload[:32], payload[32:]
    if sha256(packed).digest() != digest:
        raise BadCheckpoint(source, "content", "is damaged: bring the parts again")
    planes = []
    while packed:
        size = int.from_bytes(packed[:_HEADER], "little")
        planes.append(np.frombuffer(lzma.decompress(packed[_HEADER : _HEADER + size]), np.uint8))
        packed = packed[_HEADER + size :]
    body = np.stack(planes, axis=1).tobytes()
    end = _HEADER + int.from_bytes(body[:_HEADER], "little")
    fields = json.loads(body[_HEADER:end])
    return Checkpoint(
        recipe_of(fields["recipe"]),
        {name: value.float() for name, value in _load(body[end:]).items()},
        None,
        fields["step"],
        fields["seconds"],
        position_of(fields["position"]),
    )


def _load(body: bytes) -> dict[str, torch.Tensor]:
    """There may be one byte too many, to make the length even."""
    try:
        weights: dict[str, torch.Tensor] = load(body)
    except SafetensorError:
        weights = load(body[:-1])
    return weights


def _with_length(plane: bytes) -> bytes:
    return len(plane).to_bytes(_HEADER, "little") + plane


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m training.carry", description=__doc__)
    parser.add_argument("action", choices=("split", "join"))
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    options = parser.parse_args()
    if options.action == "join":
        join(options.source, options.target)
        print(f"checkpoint in {options.target}")
    else:
        for path in split(options.source, options.target):
            print(f"{path} {path.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    run_command(main)
