"""Pre-gated MoE in the simulator: the next layer's experts are known, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest

from moesaic import LLM
from moesaic.core.errors import ImpossibleSetting
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.result import Result
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.policy_set import PolicySet


def run(prefetch: str, **options: Any) -> Result:
    settings = Settings(
        load_model("olmoe-1b-7b"),
        load_machine("rtx4080-i5-12400"),
        policies=PolicySet.of(
            schedule="gpu-only", cache="lru", prefetch=prefetch, gate=options.pop("gate", "full")
        ),
        tokens=16,
        warmup=4,
        checked=True,
        **options,
    )
    return simulate(settings, choose_workload(None, settings).source)


def test_what_is_prefetched_is_what_the_next_layer_uses() -> None:
    none, learned, known = (run(each) for each in ("none", "next-layer", "pre-gated"))
    assert known.mean_s < learned.mean_s
    assert known.mean_s < none.mean_s
    assert known.prediction_accuracy == (), "nothing is predicted, so nothing can be wrong"
    assert learned.prediction_accuracy[0] < 1.0


def test_it_joins_big_little() -> None:
    gated = run("pre-gated", gate="big-little", fallback_ratio=0.2)
    assert gated.mean_s < run("none", gate="big-little", fallback_ratio=0.2).mean_s
    assert gated.mean_s < run("pre-gated").mean_s


def test_a_real_model_has_no_such_gates() -> None:
    with pytest.raises(ImpossibleSetting, match="simulator"):
        LLM(prefetch="pre-gated", accelerator="emulated")
