"""Are the timing sets the published ones, and are impossible ones refused by field and reason?"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest

from moesaic.core.errors import UnknownName
from moesaic.machines.sim.dram.timing import BadTiming
from moesaic.machines.sim.dram.timing_file import (
    BadTimingFile,
    known_timings,
    load_timing,
    parse_timing,
)

TRIMOE = (files("moesaic.machines.sim.dram") / "data" / "ddr5-4800-trimoe.toml").read_text()


def test_trimoe_has_the_values_of_table_1_and_the_stated_ones() -> None:
    rules = load_timing("ddr5-4800-trimoe").rules._asdict()
    table_1 = {"nccd_l": 12, "nccd_s": 8, "nrrd_s": 8, "nrrd_l": 12, "nfaw": 32}
    table_1 |= {"nrp": 34, "nbl": 8, "ncl": 40, "nwr": 72}
    silent = {"nrcd": 34, "nras": 77, "nrtp": 18, "ncwl": 38, "rank_switch": 2}
    silent |= {"nrfc": 708, "nrefi": 9360}
    bus = {"command_act": 2, "command_rd": 2, "command_wr": 2, "command_pre": 1, "command_ref": 1}
    for name, value in (table_1 | silent | bus).items():
        assert rules[name] == value, name
    assert rules["nrc"] == 77 + 34


def test_trimoe_has_the_stated_geometry() -> None:
    timing = load_timing("ddr5-4800-trimoe")
    g = timing.geometry
    assert (g.data_bits, g.request_bytes, g.ranks) == (32, 64, 4)
    assert (g.bank_groups, g.banks, g.rows, g.columns) == (8, 4, 65536, 128)
    assert timing.peak_gb_s == pytest.approx(19.2)
    dimm = 2 * g.ranks * g.banks_per_rank * g.rows * g.columns * g.request_bytes
    assert dimm == 128 << 30, "Table 1: 128 GB per DIMM"


@pytest.mark.parametrize(
    ("name", "peak"), [("ddr4-3200", 25.6), ("ddr5-4800-trimoe", 19.2), ("ddr5-5600", 22.4)]
)
def test_every_number_has_a_source(name: str, peak: float) -> None:
    assert name in known_timings()
    timing = load_timing(name.upper())
    assert timing.peak_gb_s == pytest.approx(peak)
    numbers = 1 + len(vars(timing.geometry)) + len(timing.rules)
    assert len(timing.sources) == numbers


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'ddr5-5600'"):
        load_timing("ddr5-560")
    with pytest.raises(BadTimingFile, match="there is none here"):
        load_timing("my/timing.toml")


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("nRP = {", "nRQ = {", "nck.nRQ: unknown field"),
        ("nRP = { value = 34, ", "nRP = { ", "nck.nRP: expected a whole number, not None"),
        ("nRP = { value = 34", "nRP = { value = 3.4", "nck.nRP: expected a whole number"),
        ("nRP = { value = 34", "nRP = { value = 0", "nRP: expected 1 to 65535 cycles, not 0"),
        ("nBL = { value = 8", "nBL = { value = 4", "nBL: 4 cycles carry 32 B"),
        ("nCCD_L = { value = 12", "nCCD_L = { value = 7", "nCCD_L: expected at least nccd_s"),
        (
            "nREFI = { value = 9360",
            "nREFI = { value = 900",
            "nREFI: refreshing would leave",
        ),
        ("ranks = { value = 4", "ranks = { value = -1", "ranks: expected a whole number of 1 or"),
        ('source = "TriMoE Table 1: RP"', 'source = ""', "nck.nRP.source: expected where"),
        ("[clock]", "[clocks]", "clocks: unknown field"),
        ("[clock]", "[clock", "file: expected TOML"),
        ("nRTW = { value = 14", "nRTW = { value = 5", "nRTW: a write's data would meet"),
    ],
)
def test_impossible_sets_are_refused(old: str, new: str, complaint: str) -> None:
    assert old in TRIMOE
    with pytest.raises(BadTimingFile) as caught:
        parse_timing(TRIMOE.replace(old, new).encode(), "my.toml")
    assert complaint in str(caught.value)
    assert "my.toml" in str(caught.value)


def test_a_missing_rule_is_named() -> None:
    short = "\n".join(line for line in TRIMOE.splitlines() if not line.startswith("nFAW"))
    with pytest.raises(BadTimingFile, match=r"nck\.nFAW: is missing"):
        parse_timing(short.encode(), "my.toml")


def test_a_file_is_as_good_as_a_name(tmp_path: Path) -> None:
    path = tmp_path / "my.toml"
    path.write_text(TRIMOE)
    assert load_timing(str(path)) == load_timing("ddr5-4800-trimoe")


def test_no_memory_has_any_number_of_ranks() -> None:
    for ranks in (0, 33):
        with pytest.raises(BadTiming, match="ranks"):
            load_timing("ddr4-3200").with_ranks(ranks)
