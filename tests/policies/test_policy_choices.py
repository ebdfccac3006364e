"""Is a policy with parameters read, checked, printed back and built as it was asked for?"""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moesaic.core.errors import BadPolicy, ImpossibleSetting, MoesaicError, UnknownName
from moesaic.core.parameter import Parameter
from moesaic.core.registry import Registry
from moesaic.policies.cache import caches
from moesaic.policies.cache.mrs import Mrs
from moesaic.policies.policy_choice import PolicyChoice, choose, policy
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.prefetch import prefetches

TRIED: Registry[Any] = Registry("toy")
TRIED.register(
    "toy",
    "builtins:dict",
    "has one parameter of each type",
    (
        Parameter("count", int, 2, "a whole number", minimum=1, maximum=9),
        Parameter("share", float, 0.5, "a number", above=0.0, maximum=1.0),
        Parameter("eager", bool, False, "a switch"),
        Parameter("label", str, "x", "a word"),
        Parameter("mode", str, "slow", "a choice", choices=("slow", "fast")),
        Parameter("depth", int, None, "a whole number, or worked out by the policy"),
    ),
)


def test_a_name_alone_has_every_default() -> None:
    choice = PolicyChoice.parse(caches, "mrs")
    assert choice.parameters == {
        "alpha": 0.1,
        "top_p": None,
        "pool": "per-layer",
        "admission": "bypass",
    }
    assert str(choice) == "mrs"


def test_parameters_are_read_in_any_order_and_printed_in_one() -> None:
    choice = PolicyChoice.parse(caches, " mrs : pool = global , alpha=0.70")
    assert choice.parameters == {
        "alpha": 0.7,
        "top_p": None,
        "pool": "global",
        "admission": "bypass",
    }
    assert str(choice) == "mrs:alpha=0.7,pool=global"
    assert choice == choose(caches, policy("mrs", alpha=0.7, pool="global"))
    assert choice == choose(caches, policy("mrs:alpha=0.3", alpha=0.7, pool="global"))


def test_a_default_that_is_spelled_out_is_no_other_choice() -> None:
    assert PolicyChoice.parse(caches, "mrs:alpha=0.1,top_p=auto") == choose(caches, "mrs")


def test_every_type_is_read_from_text_and_from_python() -> None:
    text = "toy:count=3,share=1,eager=yes,label=abc,mode=fast,depth=7"
    values = {"count": 3, "share": 1.0, "eager": True, "label": "abc", "mode": "fast", "depth": 7}
    found = PolicyChoice.parse(TRIED, text)
    assert found.parameters == values
    assert found == choose(TRIED, policy("toy", **values))
    assert str(found) == "toy:count=3,share=1,eager=true,label=abc,mode=fast,depth=7"
    assert found.create(TRIED) == values


@given(
    count=st.integers(1, 9),
    share=st.floats(0.0, 1.0, exclude_min=True),
    eager=st.booleans(),
    mode=st.sampled_from(["slow", "fast"]),
    depth=st.none() | st.integers(),
)
def test_what_is_printed_reads_back_as_the_same(**values: object) -> None:
    choice = choose(TRIED, policy("toy", **values))
    assert PolicyChoice.parse(TRIED, str(choice)) == choice


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("mrx", UnknownName, "unknown cache 'mrx'. Did you mean 'mrs'"),
        ("mrs:alhpa=1", UnknownName, "unknown mrs parameter 'alhpa'. Did you mean 'alpha'"),
        ("mrs:beta=1", UnknownName, "Known: admission, alpha, pool, top_p"),
        ("mrs:alpha=2", ImpossibleSetting, "alpha is '2'; it must be a number above 0 and at"),
        ("mrs:alpha=nan", ImpossibleSetting, "a number above 0 and at most 1"),
        ("mrs:alpha=high", ImpossibleSetting, "a number above 0 and at most 1"),
        ("mrs:top_p=1.5", ImpossibleSetting, "a whole number at least 1, or auto"),
        ("mrs:pool=all", ImpossibleSetting, "per-layer | global"),
        ("mrs:alpha", ImpossibleSetting, "write it as in mrs:alpha=0.1"),
        ("mrs:", ImpossibleSetting, "write it as in mrs:alpha=0.1"),
        ("lru:pool", ImpossibleSetting, "write it as in lru:counts=ranked"),
        ("mrs:alpha=0.1,alpha=0.2", ImpossibleSetting, "alpha is given twice"),
        ("mrs:alpha=", ImpossibleSetting, "'alpha=' is not parameter=value"),
    ],
)
def test_a_mistake_says_what_is_possible(text: str, kind: type[MoesaicError], message: str) -> None:
    with pytest.raises(kind) as caught:
        PolicyChoice.parse(caches, text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"count": 0}, {"count": True}, {"count": 2.0}, {"share": 0}, {"share": float("inf")},
        {"eager": "perhaps"}, {"eager": 1}, {"label": "a,b"}, {"label": ""}, {"mode": "medium"},
        {"depth": "deep"}, {"share": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_value_out_of_its_range_is_refused(values: dict[str, object]) -> None:
    (name,) = values
    with pytest.raises(ImpossibleSetting, match=f"toy 'toy': {name} is "):
        choose(TRIED, policy("toy", **values))


def test_a_policy_without_parameters_says_so() -> None:
    with pytest.raises(ImpossibleSetting, match="prefetch 'none' has no parameters: leave out x"):
        PolicyChoice.parse(prefetches, "none:x=1")
    with pytest.raises(ImpossibleSetting, match="and none has no parameters"):
        PolicyChoice.parse(prefetches, "none:")


def test_a_policy_is_built_with_its_own_parameters_only() -> None:
    choice = PolicyChoice.parse(caches, "mrs:alpha=0.7,top_p=3,pool=global")
    cache = choice.create(caches, 2, 8, 2)
    assert isinstance(cache, Mrs)
    assert (cache.alpha, cache.top_p) == (0.7, 3)


def test_sets_start_from_one_set_of_defaults() -> None:
    assert str(PolicySet()) == "best-split + learned-speed:pool=global + impact"
    assert (
        PolicySet.of(schedule="best-split", cache="learned-speed:pool=global", prefetch="impact")
        == PolicySet()
    )
    changed = PolicySet.of(schedule="hybrid", cache=policy("mrs", alpha=0.7))
    assert str(changed) == "hybrid + mrs:alpha=0.7 + impact"
    assert changed.but(cache="mrs") == PolicySet.of(schedule="hybrid", cache="mrs")
    assert pickle.loads(pickle.dumps(changed)) == changed


def test_a_set_names_the_gate_and_the_layout_that_are_not_the_default() -> None:
    asked = PolicySet.of(gate="little:k=2", layout="offline")
    assert str(asked) == "best-split + learned-speed:pool=global + impact + little:k=2 + offline"
    assert (
        str(PolicySet.of(layout="offline"))
        == "best-split + learned-speed:pool=global + impact + offline"
    )


def test_a_schedule_is_for_both_phases_unless_prompts_have_their_own() -> None:
    own = PolicySet.of(schedule="static-experts", prefill_schedule="gpu-only", cache="pinned")
    assert str(own.schedule_for("prefill")) == "gpu-only"
    assert str(own.schedule_for("decode")) == "static-experts"
    assert own.for_phase("prefill") == PolicySet.of(schedule="gpu-only", cache="pinned")
    assert own.for_phase("decode") == PolicySet.of(schedule="static-experts", cache="pinned")
    assert str(own.but(schedule="threshold").schedule_for("prefill")) == "threshold"


def test_results_record_every_policy_and_parameter() -> None:
    own = PolicySet.of(schedule="static-experts", prefill_schedule="gpu-only", cache="mrs:alpha=1")
    decode = own.as_dict("decode")
    assert decode == {
        "schedule": "static-experts",
        "cache": "mrs:alpha=1",
        "prefetch": "impact",
        "gate": "full",
        "layout": "striped",
        "promote": True,
        "fill": "auto",
        "parameters": {
            "schedule": {},
            "cache": {"alpha": 1.0, "top_p": None, "pool": "per-layer", "admission": "bypass"},
            "prefetch": {"lookahead": 3, "read_ahead": 4},
            "gate": {},
            "layout": {},
        },
    }
    assert own.as_dict("prefill")["schedule"] == "gpu-only"
    assert own.as_dict()["prefill_schedule"] == "gpu-only"


@pytest.mark.parametrize(
    ("choices", "kind", "message"),
    [
        ({"fill": "ful"}, UnknownName, "unknown fill 'ful'"),
        ({"promote": "no"}, ImpossibleSetting, "promote is 'no'"),
        ({"cache": 5}, ImpossibleSetting, "cache is 5; it must be the name of one: lru, "),
        ({"schedule": None}, ImpossibleSetting, "schedule is None"),
        ({"caches": "lru"}, UnknownName, "unknown kind of policy 'caches'. Did you mean 'cache'"),
        ({"cache": PolicySet().schedule}, UnknownName, "unknown cache 'best-split'"),
    ],
    ids=str,
)
def test_a_set_refuses_what_is_no_policy(
    choices: dict[str, Any], kind: type[MoesaicError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        PolicySet.of(**choices)


def test_slots_are_shared_out_as_the_pool_says() -> None:
    """0.3 of 8 experts in 3 layers: 2 for each layer, or 7 of 24 for all."""
    assert PolicySet.of(cache="lru").slots_at(0.3, layers=3, experts=8) == 6
    assert PolicySet.of(cache="lru:pool=global").slots_at(0.3, layers=3, experts=8) == 7


def test_without_slots_nothing_is_prefetched() -> None:
    assert PolicySet().given_slots(1) == PolicySet()
    assert str(PolicySet().given_slots(0)) == "best-split + learned-speed:pool=global + none"


def test_registering_a_parameter_twice_is_a_bug() -> None:
    again = replace(caches.shared[0], name="pool")
    with pytest.raises(BadPolicy, match="two parameters of the same name"):
        caches.register("toy", "builtins:dict", "never registered", (again,))
    assert "toy" not in caches


def test_names_parameters_and_systems_need_no_numpy() -> None:
    """`--help` reads them, and must not wait."""
    code = "import sys, moesaic.policies.systems; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
