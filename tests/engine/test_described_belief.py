"""Does a description give the brain the costs that the simulated machine has by the same text,
without asking that machine?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dimm_machines import dimm_machine
from made_up import small_machine, small_model
from moesaic.core.offloading import CPU
from moesaic.core.units import slowed_by
from moesaic.engine.described_belief import cpu_slowed, described_belief
from moesaic.hardware.machine_reader import known_machines, load_machine
from moesaic.hardware.machine_spec import HostSpec, MachineSpec
from moesaic.hardware.parts import PRIORITY, PROPORTIONAL, ResourceSpec
from moesaic.hardware.what_if import changed
from moesaic.machines.sim.physics import Physics
from moesaic.machines.sim.wiring import time_beside_copies
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.costs import UNREADABLE
from more_devices import with_a_dimm, with_four_dimms

TOKENS = 70
DTYPES = ("bf16", "int8", "int4")


def in_measured_factors() -> MachineSpec:
    """A machine whose experts differ from their rooflines, by tokens and by launches."""
    gpu = load_machine("h200-emr16").gpu
    factors = {"bf16-1": 1.0, "bf16-4": 3.0, "int4-2": 1.7}
    gpu = replace(gpu, expert_factor=factors, once_us={"launch": 16.0}, expert_gb_s={"int4": 900.0})
    return replace(load_machine("h200-emr16"), gpu=gpu)


MADE_UP = {
    "one DIMM": with_a_dimm(),
    "four DIMMs": with_four_dimms(),
    "split experts": dimm_machine(split=2),
    "measured factors": in_measured_factors(),
}


def assert_as_the_simulator(machine: MachineSpec, model: ModelSpec, dtype: str) -> None:
    belief, physics = (
        described_belief(machine, model, dtype, TOKENS),
        Physics(machine, model, dtype),
    )
    costs, topology = belief.costs, machine.topology()
    assert costs is not None
    for at, device in enumerate(topology.devices):
        assert costs.first_ns[at] == physics.first_ns(device.name)
        for p, placement in enumerate(topology.placements):
            expected = np.full(TOKENS, UNREADABLE)
            if topology.readable[at, p]:
                counts = range(1, TOKENS + 1)
                expected = np.array(
                    [physics.probed_ns(device.name, count, placement.name) for count in counts]
                )
            assert np.array_equal(costs.expert_ns[at, p, 1:], expected)
    assert costs.move_ns.tolist() == [physics.move_ns(link.name) for link in topology.links]
    alone = physics.expert_ns(CPU, 1)
    assert belief.cpu_slowed == slowed_by(alone, time_beside_copies(machine, CPU, alone))


@pytest.mark.parametrize("name", known_machines())
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_has_the_rates_of_every_described_machine(name: str, dtype: str) -> None:
    machine = load_machine(name)
    if machine.ndp is not None and dtype not in {"bf16", *machine.ndp.integer_tflops}:
        return  # its units cannot multiply such weights
    assert_as_the_simulator(machine, load_model("qwen3-30b-a3b"), dtype)


@pytest.mark.parametrize("name", MADE_UP)
def test_it_has_the_rates_of_any_topology(name: str) -> None:
    model = load_model("olmoe-1b-7b") if name == "measured factors" else small_model()
    assert_as_the_simulator(MADE_UP[name], model, "bf16")


def test_a_truth_that_is_not_in_the_description_stays_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A simulator whose CPU is slower than described changes nothing of what is believed."""
    machine, model = load_machine("h200-emr16"), load_model("olmoe-1b-7b")
    before = described_belief(machine, model, "bf16", 4)
    described = Physics.expert_ns
    monkeypatch.setattr(Physics, "expert_ns", lambda *asked: 3 * described(*asked))
    assert Physics(machine, model).expert_ns(CPU, 1) == 3 * before.tables[1, 1]
    assert np.array_equal(described_belief(machine, model, "bf16", 4).tables, before.tables)


def test_a_description_that_is_wrong_is_believed() -> None:
    """The other way round: half the bandwidth in the text is twice the time."""
    machine, model = load_machine("h200-emr16"), load_model("olmoe-1b-7b")
    slower = changed(machine, {"pcie.bandwidth_gb_s": machine.pcie.bandwidth_gb_s / 2})
    believed, usual = (described_belief(each, model, "bf16", 1) for each in (slower, machine))
    latency = round(1000 * machine.pcie.latency_us)
    assert believed.transfer_ns - latency == pytest.approx(2 * (usual.transfer_ns - latency), abs=2)


shares = st.integers(0, 100).map(lambda percent: percent / 100)
draws = st.integers(1, 180).map(lambda percent: percent / 10)


@given(
    gpu=shares,
    cpu=shares,
    link=shares,
    rule=st.sampled_from([PROPORTIONAL, PRIORITY]),
    cpu_draws=draws,
    link_draws=st.integers(1, 99).map(lambda percent: percent / 10),
    first=st.sampled_from([("pcie",), ("cpu",), ("cpu", "pcie")]),
    work_ns=st.integers(1, 10**7),
)
def test_what_a_copy_takes_from_the_cpu_is_what_the_simulator_shares(
    gpu: float,
    cpu: float,
    link: float,
    rule: str,
    cpu_draws: float,
    link_draws: float,
    first: tuple[str, ...],
    work_ns: int,
) -> None:
    resource = ResourceSpec(
        rule, 10.0, {"cpu": cpu_draws, "pcie": link_draws}, first if rule == PRIORITY else ()
    )
    machine = replace(
        small_machine(), host=HostSpec(gpu, cpu, link, 0.0), resources={"memory": resource}
    )
    expected = slowed_by(work_ns, time_beside_copies(machine, CPU, work_ns))
    assert cpu_slowed(machine, work_ns) == expected


def test_a_copy_that_leaves_nothing_holds_the_cpu_up() -> None:
    resource = ResourceSpec(PRIORITY, 10.0, {"cpu": 5.0, "pcie": 10.0}, ("pcie",))
    machine = replace(small_machine(), resources={"memory": resource})
    assert cpu_slowed(machine, 1000) > 100_000
