"""Do options say their defaults and choices, and is one that would change nothing refused?"""

from __future__ import annotations

from dataclasses import fields

import pytest
from command import SMALL, refused, run, run_json

from moesaic.cli.shared.simulation_options import ALPHA, CACHE, DTYPE, PREFETCH, SCHEDULE
from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.lab.simulate.settings import Settings
from moesaic.policies.cache import mrs

PREFILL = ("--phase", "prefill")
IDLE = [
    (("simulate", *PREFILL, "--batch", 1), "--batch 1 means nothing in prefill"),
    (("simulate", *PREFILL, "--context", 0), "use --phase decode"),
    (("simulate", "--prompts", 2), "--prompts 2 means nothing in decode"),
    (("simulate", "--alpha", 0.2, "--cache", "lru"), "here the cache is lru"),
    (("simulate", "--alpha", 0.2, "--system", "fiddler"), "here the cache is pinned"),
    (("compare", *PREFILL, "--batch", 1), "--batch 1 means nothing in prefill"),
    (("compare", "--prompts", 2), "--prompts 2 means nothing in decode"),
    (("compare", "--alpha", 0.2, "--caches", "lru,belady"), "here the cache is lru or belady"),
]


@pytest.mark.parametrize(("words", "message"), IDLE, ids=lambda value: str(value)[:40])
def test_an_option_without_effect_is_refused(
    words: tuple[object, ...],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(monkeypatch, capsys, *words, *SMALL)
    assert message in said
    assert "none of these can run" not in said


def test_alpha_concerns_only_the_runs_with_its_cache() -> None:
    words = ("compare", *SMALL, "--jobs", 1, "--caches", "mrs,lru", "--cache-ratios", 0.25)
    plain, other = run_json(*words), run_json(*words, "--alpha", 0.9)
    assert plain[0]["latency_s"] != other[0]["latency_s"]
    assert plain[1]["latency_s"] == other[1]["latency_s"]


def test_help_says_the_defaults_that_count() -> None:
    defaults = {field.name: field.default for field in fields(Settings)}
    assert (defaults["schedule"], defaults["cache"]) == (SCHEDULE, CACHE)
    assert (defaults["prefetch"], defaults["expert_dtype"]) == (PREFETCH, DTYPE)
    assert (defaults["dense_dtype"], defaults["per_layer"]) == (DTYPE, True)
    assert defaults["promote"] is True
    assert mrs.ALPHA == ALPHA


@pytest.mark.parametrize("verb", ["simulate", "compare"])
def test_help_shows_defaults_and_choices(verb: str) -> None:
    shown = " ".join(run(verb, "--help").out.split())
    for default in (SCHEDULE, CACHE, PREFETCH, "per-layer", "promote", str(ALPHA)):
        assert f"[{default}" in shown
    assert shown.count(" | ".join(BITS_PER_WEIGHT)) == 2


def test_compare_overrides_slots_and_promotion_of_systems() -> None:
    words = ("compare", *SMALL, "--jobs", 1, "--systems", "llama.cpp,hybrimoe")
    says = [row["policies"] for row in run_json(*words)]
    assert [policies["slots"] for policies in says] == ["global", "per-layer"]
    for slots in ("global", "per-layer"):
        rows = run_json(*words, "--slots", slots, "--no-promote")
        assert [row["policies"]["slots"] for row in rows] == [slots, slots]
        assert not any(row["policies"]["promote"] for row in rows)
