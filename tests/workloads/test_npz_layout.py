"""Does a trace of arrays need `experts` only, and are mistakes refused before it is unpacked?"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moesaic.core.errors import BadTrace
from moesaic.workloads import npz_arrays
from moesaic.workloads.block import join
from moesaic.workloads.domains import domains_of
from moesaic.workloads.source import open_trace

EXPERTS = np.array([[[0, 3], [2, 1]], [[1, 2], [0, 3]], [[3, 0], [1, 0]]], np.int64)


def saved(path: Path, **arrays: Any) -> Path:
    np.savez_compressed(path, **arrays)
    return path


def test_only_experts_are_required(tmp_path: Path) -> None:
    trace = open_trace(saved(tmp_path / "some-model.npz", experts=EXPERTS))
    header, block = trace.header, join(list(trace.blocks()))
    assert (header.model, header.origin, header.has_weights) == ("some-model", "imported", False)
    assert (header.num_layers, header.num_experts, header.top_k) == (2, 4, 2)
    assert header.source == "imported routing of some-model, from some-model.npz"
    assert block.experts.tolist() == EXPERTS.tolist()
    assert block.documents.tolist() == [0, 0, 0]
    assert block.phases.tolist() == [1, 1, 1]
    assert domains_of(header) == ()


def test_everything_that_is_optional(tmp_path: Path) -> None:
    path = saved(
        tmp_path / "x.npz", experts=EXPERTS, weights=np.full((3, 2, 2), 0.25), num_experts=60,
        doc_start=[0, 1, 3], domain=["law", "code"], phase=[0, 1, 1], model="mine", origin="real",
        source="recorded on my desk",
    )  # fmt: skip
    trace = open_trace(path)
    header, block = trace.header, join(list(trace.blocks()))
    assert (header.model, header.num_experts, header.origin) == ("mine", 60, "real")
    assert header.source == "recorded on my desk"
    assert block.weights is not None
    assert set(block.weights.ravel().tolist()) == {0.25}
    assert block.positions.tolist() == [0, 0, 1]
    assert block.phases.tolist() == [0, 1, 1]
    assert domains_of(header) == ("law", "code")


NAN = np.full((3, 2, 2), 0.5)
NAN[1, 0, 1] = np.nan
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"num_experts": 3}, "experts: token 0, layer 0: 3 is not from 0 to 2, for there are 3"),
    ({"experts": EXPERTS - 1}, "experts: token 0, layer 0: -1 is not from 0 to"),
    ({"experts": EXPERTS.astype(float)}, "experts: must be whole numbers"),
    ({"experts": EXPERTS * 0}, "token 0, layer 0 has 0 twice"),
    ({"weights": NAN}, "weights: token 1, layer 0: nan is not a finite number"),
    ({"weights": NAN[:2]}, "weights: must have the shape of experts"),
    ({"phase": "decoding"}, "phase: must be 'prefill' or 'decode'"),
    ({"origin": "genuine"}, "origin: must be real or synthetic or imported"),
    ({"domain": ["a", "b"]}, "domain: must name 1 documents"),
    ({"num_experts": 2.5}, "num_experts: must be one whole number"),
    ({"model": 3}, "model: must be one string"),
]


@pytest.mark.parametrize(("changes", "said"), MISTAKES, ids=[str(n) for n in range(len(MISTAKES))])
def test_mistakes_name_their_place(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "bad.npz", **{"experts": EXPERTS, **changes})
    with pytest.raises(BadTrace) as caught:
        open_trace(path)
    assert said in str(caught.value)
    assert "bad.npz" in str(caught.value)


def archive(path: Path, shape: tuple[int, ...], content: bytes) -> Path:
    """An archive whose header announces what may not be there."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "|u1", "fortran_order": False, "shape": shape}
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("experts.npy", head.getvalue() + content)
    return path


def test_what_unpacks_to_too_much_is_refused_by_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(npz_arrays, "MAX_UNPACKED_BYTES", 1_000_000)
    monkeypatch.setattr(np, "load", None)  # nothing is unpacked
    path = archive(tmp_path / "bomb.npz", (1000, 10, 200), bytes(2_000_000))
    assert path.stat().st_size < 10_000
    with pytest.raises(BadTrace, match=r"unpacks to 0\.0 GB, and at most .* trace import"):
        open_trace(path)


def test_a_header_that_lies_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path / "lies.npz", (10**9, 4, 8), bytes(100))
    with pytest.raises(
        BadTrace, match="experts: must have 32000000000 bytes by its header, has 100"
    ):
        open_trace(path)


def test_the_limit_is_as_documented() -> None:
    assert npz_arrays.MAX_UNPACKED_BYTES == 2 << 30
    page = (Path(__file__).parents[2] / "docs" / "trace-format.md").read_text()
    assert "more than 2 GiB" in page
