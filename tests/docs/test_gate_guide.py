"""Do the gates of the guide work, in the simulator and on a real run?"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

import stock
from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.parameter import Parameter
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.gate import gates
from moesaic.policies.policy_set import PolicySet
from stock_text import prompt

PAGE = Path(__file__).parents[2] / "docs" / "add-a-gate.md"


@pytest.fixture(autouse=True)
def guide(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's files and registrations."""
    page = PAGE.read_text(encoding="utf-8")
    examples = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    files = re.findall(r"`src/moesaic/policies/gate/(\w+)\.py`", page)
    monkeypatch.setattr(gates, "_entries", dict(gates._entries))
    for name, source, line in zip(files, examples[::2], examples[1::2], strict=True):
        module = ModuleType(f"moesaic.policies.gate.{name}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(source, module.__dict__)
        package = {"gates": gates, "_HERE": "moesaic.policies.gate", "Parameter": Parameter}
        exec(line, package)


def simulated_s(gate: str, ratio: float | None = None) -> float:
    model, machine = load_model("olmoe-1b-7b"), load_machine("a6000-xeon5220r")
    settings = Settings(
        model,
        machine,
        policies=PolicySet.of(gate=gate),
        tokens=16,
        warmup=4,
        fallback_ratio=ratio,
        checked=True,
    )
    return simulate(settings, choose_workload(None, settings).source).elapsed_s


def test_fewer_experts_take_less_time() -> None:
    times = [simulated_s(gate) for gate in ("fewer:experts=1", "fewer:experts=4", "full")]
    assert times == sorted(times)
    assert simulated_s("fewer:experts=8") == times[-1]


def said(gate: str) -> tuple[tuple[int, ...], int]:
    with LLM(stock.saved("olmoe").folder, dtype="fp32", threads=1, gate=gate) as llm:
        (answer,) = llm.generate([prompt(20)], SamplingParams(max_tokens=16, temperature=0.0))
        return answer.tokens, llm.stats().rerun_tokens


def test_a_second_look_lies_between_half_and_all() -> None:
    half, whole = said("fewer:experts=2"), said("full")
    assert half[1] == whole[1] == 0
    assert half[0] != whole[0]
    assert said("second-look:sure=0") == half
    assert said("second-look:sure=1.1") == (whole[0], 15)
    text, again = said("second-look:sure=0.1")
    assert 0 < again < 15
    assert text != half[0]


def test_the_simulator_looks_twice_at_as_many_tokens_as_it_is_asked_to() -> None:
    times = [simulated_s("second-look", ratio) for ratio in (0.0, 0.5, 1.0)]
    assert times == sorted(times)
    with pytest.raises(ImpossibleSetting, match="'second-look' runs tokens again"):
        simulated_s("second-look")
