"""Do patterns go where their names say, and are files read or refused line by line?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.machines.sim.dram.named_patterns import PATTERNS, named_pattern
from moesaic.machines.sim.dram.pattern import BadPattern, pattern
from moesaic.machines.sim.dram.pattern_file import BadPatternFile, read_pattern
from moesaic.machines.sim.dram.simulate import simulate
from moesaic.machines.sim.dram.timing_file import load_timing

TIMING = load_timing("ddr5-4800-trimoe")
GEOMETRY = TIMING.geometry


def test_a_stream_visits_every_column_of_its_rows_once() -> None:
    block = GEOMETRY.banks_per_rank * GEOMETRY.columns
    for name, ranks in (("stream", 1), ("stream-ranks", 4), ("stream-rank-rows", 4)):
        made = named_pattern(name, GEOMETRY, block * ranks)
        places = set(zip(made.rank, made.bg, made.bank, made.col, strict=True))
        assert len(places) == len(made)
        assert set(made.rank) == set(range(ranks))
        assert set(made.row) == {0}


def test_neighbours_differ_where_the_name_says() -> None:
    made = {name: named_pattern(name, GEOMETRY, 3000) for name in PATTERNS}
    assert (np.diff(made["stream"].bg) != 0).all()
    assert (np.diff(made["stream-ranks"].rank) != 0).all()
    assert (np.diff(made["row-conflict"].row) != 0).all()
    assert set(made["same-bank-group"].bg) == {0}
    assert set(made["same-bank-group"].bank) == {0, 1, 2, 3}
    assert set(made["single-bank"].bank) == {0}
    assert set(made["random"].rank) == {0}
    assert set(made["random-ranks"].rank) == {0, 1, 2, 3}


def test_a_seed_repeats_a_pattern() -> None:
    first, again, other = (named_pattern("random", GEOMETRY, 50, seed=s) for s in (1, 1, 2))
    assert (first.row == again.row).all()
    assert (first.row != other.row).any()


def test_a_share_of_requests_writes() -> None:
    made = named_pattern("stream", GEOMETRY, 4000, write_share=0.25)
    assert 900 < made.write.sum() < 1100
    assert named_pattern("stream", GEOMETRY, 10, write_share=1).write.all()


@pytest.mark.parametrize(
    ("name", "more", "complaint"),
    [("stream", {"requests": 0}, "0 requests"), ("stream", {"write_share": 2}, "share of 2")],
)
def test_impossible_wants_are_refused(name: str, more: dict[str, int], complaint: str) -> None:
    with pytest.raises(ImpossibleSetting, match=complaint):
        named_pattern(name, GEOMETRY, **{"requests": 5, **more})


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="row-conflict"):
        named_pattern("rowconflict", GEOMETRY, 5)


def test_an_address_outside_is_refused() -> None:
    with pytest.raises(BadPattern, match="request 3: col is 128, expected 0 to 127"):
        pattern(GEOMETRY, col=[0, 127, 128])


def test_a_file_gives_the_requests_in_order(tmp_path: Path) -> None:
    path = tmp_path / "few.txt"
    path.write_text("# rank bg bank row col\nR 0 1 2 3 4\n\nW 3 7 3 65535 127  # last of all\n")
    made = read_pattern(path, GEOMETRY)
    assert made.write.tolist() == [0, 1]
    assert [made.rank[0], made.bg[0], made.bank[0], made.row[0], made.col[0]] == [0, 1, 2, 3, 4]
    assert [made.rank[1], made.bg[1], made.bank[1], made.row[1], made.col[1]] == [
        3, 7, 3, 65535, 127
    ]  # fmt: skip
    assert simulate(TIMING, made).requests == 2


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("X 0 0 0 0 0", "begins with 'X', expected R or W"),
        ("R 0 0 0 0", "4 numbers, expected 5: `R rank bg bank row col`"),
        ("R 0 0 0 0 0 0", "6 numbers, expected 5"),
        ("R 0 0 zero 0 0", "'zero' is no whole number"),
        ("R 0 0 0 1.5 0", "'1.5' is no whole number"),
        ("R 4 0 0 0 0", "rank is 4, expected 0 to 3 (--ranks says"),
        ("R 0 8 0 0 0", "bg is 8, expected 0 to 7"),
        ("R 0 0 -1 0 0", "bank is -1, expected 0 to 3"),
        ("R 0 0 0 65536 0", "row is 65536, expected 0 to 65535"),
        ("R 0 0 0 0 128", "col is 128, expected 0 to 127"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, complaint: str) -> None:
    path = tmp_path / "wrong.txt"
    path.write_text(f"R 0 0 0 0 0\n\n{line}\n")
    with pytest.raises(BadPatternFile) as caught:
        read_pattern(path, GEOMETRY)
    assert str(caught.value).startswith(f"{path}:3: ")
    assert complaint in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"# nothing\n", b"\xff\xfe\x00"])
def test_a_file_without_requests_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "empty.txt"
    path.write_bytes(content)
    with pytest.raises(BadPatternFile, match="expected lines"):
        read_pattern(path, GEOMETRY)
