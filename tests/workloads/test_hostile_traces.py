"""Is each hostile value of a trace, a calibration or an output path one clear message?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from trace_examples import example_header

from moesaic.cli.shared.out_files import check_routing
from moesaic.core.errors import BadTrace, ImpossibleSetting
from moesaic.engine.recording import check_writable
from moesaic.workloads.format import VERSION
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.npz_trace import load_counts, load_shares, open_npz
from moesaic.workloads.synthetic.calibration import GPT_OSS, Calibration, load_calibration

DEEP = "[" * 5000 + "]" * 5000
LONG = "9" * 5000


@pytest.mark.parametrize("value", [DEEP, LONG, "NaN", "-Infinity", "1e999", '"\\ud800"'])
def test_metadata(value: str) -> None:
    """What is accepted can be written again."""
    text = example_header().to_json().replace('"for tests"', value)
    with pytest.raises(BadTrace, match=r"routing trace 'x': header(\.metadata\.note)?: expected"):
        TraceHeader.from_json(text, "x", VERSION)


@pytest.mark.parametrize("value", [DEEP, LONG, "NaN", "1e999"])
@pytest.mark.parametrize("field", ["noise", "dimensions"])
def test_calibrations(value: str, field: str) -> None:
    fields = json.loads(load_calibration(GPT_OSS).to_json())
    fields["logits"][field] = "here"
    with pytest.raises(BadTrace, match=r"routing trace 'x': calibration(\.logits\.\w+)?: expected"):
        Calibration.from_json(json.dumps(fields).replace('"here"', value), "x")


@pytest.mark.parametrize(
    "changes",
    [
        {"doc_start": np.array([0.0, 3.0, 6.0])},
        {"doc_start": np.array(["0", "3", "6"])},
        {"doc_start": np.array([0, 2**63, 6], np.uint64)},
        {"experts": np.zeros((6, 2, 0), np.uint8), "weights_u8": np.zeros((6, 2, 0), np.uint8)},
    ],
)
def test_arrays(changes: dict[str, Any], tmp_path: Path) -> None:
    arrays: dict[str, Any] = {
        "experts": np.tile(np.array([0, 3], np.uint8), (6, 2, 1)),
        "weights_u8": np.full((6, 2, 2), 127, np.uint8),
        "doc_start": np.array([0, 3, 6]),
        "domain": np.array(["a", "b"]),
    }
    path = tmp_path / "m_decode.npz"
    np.savez(path, **arrays)
    assert open_npz(path).header.top_k == 2
    arrays |= changes
    np.savez(path, **arrays)
    with pytest.raises(BadTrace, match=next(iter(changes))):
        open_npz(path)


def test_a_bare_array_is_no_archive(tmp_path: Path) -> None:
    path = tmp_path / "m.npz"
    with path.open("wb") as stream:
        np.save(stream, np.zeros(3))
    for read in (open_npz, load_shares):
        with pytest.raises(BadTrace, match="archive: cannot be read"):
            read(path)


@pytest.mark.parametrize("counts", [DEEP, LONG, "[[1], [1, 2]]", "[1, 2]", '[["x"]]', "[]"])
def test_counts(counts: str, tmp_path: Path) -> None:
    path = tmp_path / "counts.json"
    path.write_text('{"m": {"expert_counts": {"d": ' + counts + "}}}")
    with pytest.raises(BadTrace, match=r"counts.json': "):
        load_counts(path, "m")


def test_recordings_replace_no_device() -> None:
    with pytest.raises(ImpossibleSetting, match=r"^record '/dev/null' is a device: give"):
        check_writable("/dev/null")
    with pytest.raises(ImpossibleSetting, match=r"^--record '/dev/null' is a device: give"):
        check_routing("--record", "/dev/null")
