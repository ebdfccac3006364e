"""Do `moesaic.simulate` and `moesaic.compare` run what their arguments and the command line say?"""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest
from click.testing import CliRunner

from moesaic import PolicySet, compare, load_machine, load_model, policy, simulate
from moesaic.cli.command_line import app
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.core.report import Timeline
from moesaic.lab.simulate.public import RunOptions
from moesaic.lab.simulate.settings import Settings

MODEL, MACHINE = "olmoe-1b-7b", "a6000-xeon5220r"


def test_every_setting_is_an_option() -> None:
    names = [field.name for field in fields(Settings)]
    assert list(RunOptions.__annotations__) == [
        name for name in names if name not in {"model", "machine", "policies"}
    ]


def test_a_call_is_what_the_command_line_runs() -> None:
    words = ["simulate", "--model", MODEL, "--machine", MACHINE, "--policies", "hybrimoe"]
    words += ["--tokens", "4", "--warmup", "2", "--cache-ratio", "0.5", "--json"]
    printed = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    result = simulate(MODEL, MACHINE, "hybrimoe", tokens=4, warmup=2, cache_ratio=0.5).as_dict()
    for name in ("policies", "latency_s", "hit_rate", "bytes_moved", "trace"):
        assert result[name] == printed[name], name


def test_names_stand_for_what_they_load() -> None:
    timeline = Timeline()
    named = simulate(MODEL, MACHINE, tokens=2, warmup=0, timeline=timeline)
    loaded = simulate(load_model(MODEL), load_machine(MACHINE), PolicySet(), tokens=2, warmup=0)
    assert timeline.spans
    assert replace(named, wall_s=0) == replace(loaded, wall_s=0)


def test_compared_runs_replay_the_same_tokens() -> None:
    found = compare(MODEL, MACHINE, ["moesaic", "ktransformers"], tokens=3, warmup=1)
    assert list(found) == ["moesaic", "ktransformers"]
    alone = simulate(MODEL, MACHINE, "ktransformers", tokens=3, warmup=1)
    assert found["ktransformers"].latencies_s == alone.latencies_s
    own = {"mine": PolicySet.of(cache=policy("lru")), "theirs": "hybrimoe"}
    mine, theirs = compare(MODEL, MACHINE, own, tokens=2, warmup=0).values()
    assert str(mine.settings.policies.cache) == "lru"
    assert str(theirs.settings.policies.schedule) == "hybrid"


def test_mistakes_say_what_is_possible() -> None:
    with pytest.raises(UnknownName, match="tokens"):
        simulate(MODEL, MACHINE, token=3)  # type: ignore[call-arg]
    with pytest.raises(UnknownName, match="hybrimoe"):
        simulate(MODEL, MACHINE, "hybrimo")
    with pytest.raises(ImpossibleSetting, match="takes several"):
        compare(MODEL, MACHINE, "moesaic")
    with pytest.raises(ImpossibleSetting, match="nothing to compare"):
        compare(MODEL, MACHINE, [])
