"""`--placement FILE`: does a run leave what it has seen of the routing, and does the next one start
from it, whatever its policies?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stock
from moesaic import LLM, SamplingParams
from moesaic.core.errors import ImpossibleSetting, MoesaicError
from moesaic.engine import loading
from moesaic.engine.learned_placement import profiled_model
from moesaic.policies.compose import initial_placement
from moesaic.policies.expert_profile import ExpertProfile, read_profile
from moesaic.workloads.source import open_trace
from moesaic.workloads.steps import popularity

PROMPTS = ([1, 2, 3], [40, 41, 42, 43, 44])
STATIC = "ktransformers"


def llm(placement: Path | None, **options: Any) -> LLM:
    usual: dict[str, Any] = {"accelerator": "emulated", "cache_ratio": 0.25, "dtype": "fp32"}
    usual |= {"threads": 1, "max_model_len": 64, "placement": placement}
    return LLM(stock.saved("olmoe").folder, **(usual | options))


def write(model: LLM) -> None:
    model.generate(list(PROMPTS), SamplingParams(max_tokens=6, temperature=0.0))


def test_a_run_leaves_the_uses_it_has_seen_and_the_next_adds_its_own(tmp_path: Path) -> None:
    path, trace = tmp_path / "uses.json", tmp_path / "trace.moet"
    with llm(path, record=trace) as model:
        spec = model.model.spec
        write(model)
        assert not path.exists(), "written at the end"
    source = open_trace(trace)
    left = read_profile(path, profiled_model(spec))
    assert (left.counts == popularity(source)).all()
    assert left.tokens * spec.top_k == left.counts[0].sum()
    with llm(path, system=STATIC) as model:
        write(model)
    twice = read_profile(path, profiled_model(spec))
    assert twice.tokens == 2 * left.tokens
    assert (twice.counts == 2 * left.counts).all(), "a static system counts, too"
    with llm(path):
        pass
    assert read_profile(path, profiled_model(spec)).tokens == twice.tokens, "nothing was learned"


def uses(path: Path) -> ExpertProfile:
    """Of the stock model, as if its last experts were used most."""
    with llm(None) as model:
        known = profiled_model(model.model.spec)
    shape = known.shape
    counts = np.arange(shape.layers * shape.experts, dtype=np.int64).reshape(shape.layers, -1)
    made = ExpertProfile(known, 100, counts)
    made.write(path)
    return made


@pytest.mark.parametrize("system", [STATIC, "moesaic", "hybrimoe"])
def test_every_system_starts_with_the_experts_that_were_used_most(
    tmp_path: Path, system: str
) -> None:
    profile = uses(tmp_path / "uses.json")
    with llm(tmp_path / "uses.json", system=system) as model:
        runner = model.model.runner
        per_layer = model.model.settings.policies.per_layer
        resident = {tuple(each) for each in np.argwhere(runner.machine.residency.resident).tolist()}
        slots = len(resident)
        wanted = initial_placement("popular", profile.counts, slots, per_layer)
        values = runner.brain.cache.values
        if system == "moesaic":  # whose cache starts from the same uses
            assert (np.diff(values, axis=1) >= 0).all()
            assert values.any()
    assert slots
    assert resident == {tuple(each) for each in wanted}


def test_mistakes_are_found_before_weights_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "uses.json"
    made = uses(path)
    other = tmp_path / "other.json"
    ExpertProfile(made.model._replace(name="another"), 1, made.counts).write(other)
    damaged = tmp_path / "damaged.json"
    damaged.write_text(path.read_text()[:-20])

    def read_weights(*given: Any, **named: Any) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loading, "load_decoder", read_weights)
    for placement, words in (
        (other, "it is of another"),
        (damaged, "expected JSON"),
        (tmp_path, "is a directory"),
        (tmp_path / "nowhere" / "uses.json", "cannot be written"),
    ):
        with pytest.raises(MoesaicError, match=words) as caught:
            llm(placement)
        assert "\n" not in str(caught.value)
    with pytest.raises(ImpossibleSetting, match="but there is none"):
        llm(path, accelerator="none", cache_ratio=None)
