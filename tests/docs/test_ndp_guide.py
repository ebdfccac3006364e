"""Does the page on DIMMs that compute run, and are its times those of the simulator?"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from test_documentation import ROOT, blocks, register

from moesaic.hardware.machine_reader import load_machine
from moesaic.hardware.what_if import changed
from moesaic.lab.simulate.floor import Floor
from moesaic.machines.sim import SimMachine
from moesaic.machines.sim.physics import Physics
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.schedule import schedules

PAGE = ROOT / "docs" / "ndp.md"


def test_its_schedule_runs_on_the_papers_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units compute, every plan is legal, and more contention is never faster."""
    schedule, line, run = blocks(PAGE, "python")
    register(monkeypatch, "schedule", schedules, "near_each", schedule, line)
    names: dict[str, Any] = {}
    exec(run, names)
    took = names["latencies"]
    assert took["none"] <= took["own-share"] <= took["full"]
    assert took["none"] < took["full"]
    floor = Floor(names["machine"].physics)
    steps = islice(names["workload"](names["settings"], names["source"]), 4)
    for routed, report in zip(steps, names["reports"], strict=True):
        assert floor.step_s(routed.step, report, routed.routed.uses) <= report.latency_ns / 1e9
    for machine in names["machines"].values():
        units = [lane for name, lane in machine.lanes.items() if name.startswith("ndp")]
        assert len(units) == 16
        assert all(lane.worked_ns > 0 for lane in units)
        located = machine.memory.located[1:].sum(axis=0)
        assert (located == 1).all(), "striped or in one DIMM"


@pytest.mark.parametrize("topology", ["per-dimm", "ring", "bus"])
def test_its_table_of_links_is_right(topology: str) -> None:
    (row,) = [li for li in PAGE.read_text().splitlines() if li.startswith(f"| `{topology}`")]
    relayout, migration = (float(cell.split()[0]) for cell in row.split("|")[3:5])
    spec = changed(load_machine("trimoe-paper"), {"dimm_link.topology": topology})
    machine = SimMachine(Physics(spec, load_model("qwen3-235b-a22b")), 4)
    stripes = machine.topology.placements[1].name
    for ends, ms in (
        ((stripes, "whole@dimm3"), relayout),
        (("whole@dimm3", stripes), relayout),
        (("whole@dimm3", "whole@dimm9"), migration),
    ):
        assert machine.probe_move(*ends) / 1e6 == pytest.approx(ms, abs=0.006)
