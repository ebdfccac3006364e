"""Traces that lie, for the fuzzer: .moet files whose checksums fit, and arrays of .npz files."""

from __future__ import annotations

import json
import random
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from fuzzing.examples import trace_block, trace_header
from fuzzing.lies import Lie, lying
from moesaic.workloads.block import RoutingBlock
from moesaic.workloads.format import (
    END_CHUNK,
    MAGIC,
    PREAMBLE,
    TOKENS_CHUNK,
    VERSION,
    crc32,
    pack_block,
    pack_chunk,
)
from moesaic.workloads.npz_trace import open_npz
from moesaic.workloads.reader import TraceReader

_TRACE, _ARRAYS = "trace.moet", "model_decode.npz"


class _Trace:
    """A file before it is written: header, columns and counts, which need not fit together."""

    def __init__(self) -> None:
        header, block = trace_header(), trace_block()
        self.header: dict[str, Any] = json.loads(header.to_json())
        self.packed_as = header
        columns = {field.name: getattr(block, field.name) for field in fields(RoutingBlock)}
        self.columns: dict[str, Any] = {n: a.copy() for n, a in columns.items() if a is not None}
        self.tokens = self.total = len(block)
        self.after = b""

    def save(self, path: Path) -> None:
        text = json.dumps(self.header).encode()
        preamble = PREAMBLE.pack(MAGIC, VERSION, len(text))
        payload = pack_block(RoutingBlock(**self.columns), self.packed_as)
        chunk = pack_chunk(TOKENS_CHUNK, self.tokens, payload)
        end = pack_chunk(END_CHUNK, self.total, b"")
        path.write_bytes(preamble + crc32(preamble, text) + text + chunk + end + self.after)


def _set(field: str, *values: Any) -> Lie:
    return Lie(lambda t, r: t.header.__setitem__(field, r.choice(values)))


def _put(column: str, *values: Any) -> Lie:
    def change(made: _Trace, rng: random.Random) -> None:
        array = made.columns[column]
        array[tuple(rng.randrange(size) for size in array.shape)] = rng.choice(values)

    return Lie(change)


def _same_expert(made: _Trace, rng: random.Random) -> None:
    place = rng.randrange(made.tokens), rng.randrange(2)
    made.columns["experts"][place] = rng.randrange(4)


def _backwards(made: _Trace, rng: random.Random) -> None:
    column = made.columns["positions"]
    column[:] = column[::-1].copy()


def _falling(made: _Trace, rng: random.Random) -> None:
    made.columns["documents"][: rng.randint(1, 4)] = 1


_TRACE_LIES = {
    "fewer experts": _set("num_experts", 1, 2, 3),
    "more experts": Lie(lambda t, r: t.header.update(num_experts=r.choice([5, 64])), allowed=True),
    "experts of two bytes": _set("num_experts", 257, 65536),
    "other layers": _set("num_layers", 1, 3, 4096),
    "other ranks": _set("ranks", 1, 3),
    "another top-k": _set("top_k", 0, 1, 3),
    "weights that are not there": Lie(lambda t, r: t.header.update(has_scores=True)),
    "weights that are hidden": _set("has_weights", False),
    "other tokens": Lie(lambda t, r: setattr(t, "tokens", r.choice([0, 4, 6, 2**40]))),
    "another total": Lie(lambda t, r: setattr(t, "total", r.choice([0, 4, 6, 2**63]))),
    "an expert out of range": _put("experts", 4, 5, 255),
    "an expert twice": Lie(_same_expert),
    "a phase": _put("phases", 2, 255),
    "a weight": _put("weights", np.nan, np.inf, -np.inf),
    "positions backwards": Lie(_backwards),
    "documents backwards": Lie(_falling),
    "trailing bytes": Lie(lambda t, r: setattr(t, "after", r.randbytes(r.randint(1, 40)))),
    "another model": Lie(lambda t, r: t.header.update(model="other"), allowed=True),
}


def _read_trace(folder: Path) -> None:
    with TraceReader(folder / _TRACE) as reader:
        for _ in reader:
            pass


Arrays = dict[str, Any]


def _arrays() -> Arrays:
    return {
        "experts": np.tile(np.array([0, 3], np.uint8), (6, 2, 1)),
        "weights_u8": np.full((6, 2, 2), 127, np.uint8),
        "doc_start": np.array([0, 3, 6]),
        "domain": np.array(["a", "b"]),
    }


def _replace(name: str, *values: Any) -> Lie:
    return Lie(lambda a, r: a.__setitem__(name, np.asarray(r.choice(values))))


_NPZ_LIES = {
    "documents that are not sorted": _replace(
        "doc_start", [0, 6, 3], [3, 0, 6], [6, 3, 0], [0, 3, 3, 6]
    ),
    "documents that end elsewhere": _replace("doc_start", [0, 3, 5], [0, 3, 7], [0, 3, 2**40]),
    "documents that begin elsewhere": _replace("doc_start", [1, 3, 6], [-3, 3, 6]),
    "documents of fractions": _replace("doc_start", [0.0, 2.5, 6.0], [0.0, np.nan, 6.0]),
    "documents of two dimensions": _replace("doc_start", [[0, 3, 6]]),
    "experts of two dimensions": Lie(lambda a, r: a.update(experts=a["experts"][0])),
    "experts that are fractions": Lie(lambda a, r: a.update(experts=a["experts"] + 0.5)),
    "experts below 0": Lie(lambda a, r: a.update(experts=a["experts"].astype(np.int8) - 1)),
    "an expert twice": Lie(lambda a, r: a["experts"].__setitem__(r.randrange(6), 3)),
    "no experts": Lie(lambda a, r: a.update(experts=a["experts"][:0])),
    "weights of another shape": Lie(
        lambda a, r: a.update(weights_u8=r.choice([a["weights_u8"][:5], a["weights_u8"][..., :1]]))
    ),
    "objects": Lie(lambda a, r: a.update(experts=a["experts"].astype(object))),
    "exchanged layers": Lie(lambda a, r: a.update(experts=a["experts"][:, ::-1]), allowed=True),
}


def _read_npz(folder: Path) -> None:
    for _ in open_npz(folder / _ARRAYS).blocks():
        pass


TRACES = lying(_Trace, lambda f, t: t.save(f / _TRACE), _TRACE_LIES, _read_trace)
NPZ = lying(_arrays, lambda f, a: np.savez(f / _ARRAYS, **a), _NPZ_LIES, _read_npz)
