"""Is synthetic routing deterministic, well formed, and like the trace it imitates?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from moesaic.core.errors import BadTrace, ImpossibleSetting, UnknownName
from moesaic.model_info.model_zoo import load_model
from moesaic.workloads.block import RoutingBlock, check_block, check_order, join
from moesaic.workloads.bundled_traces import bundled_trace
from moesaic.workloads.source import open_trace
from moesaic.workloads.stats.phases import totals
from moesaic.workloads.stats.sample import collect
from moesaic.workloads.stats.summary import describe, describe_sample
from moesaic.workloads.synthetic import fit as fitting
from moesaic.workloads.synthetic.calibration import (
    Calibration,
    Logits,
    calibration_names,
    default_calibration,
    load_calibration,
)
from moesaic.workloads.synthetic.fit import PARTS, START, Trial, fit, search, to_logits
from moesaic.workloads.synthetic.generate import SyntheticTrace, TraceShape, synthesize
from moesaic.workloads.synthetic.latent import LatentModel

SMALL = TraceShape("small", 4, 16, 2)


def make(
    seed: int = 0, tokens: int = 700, shape: TraceShape = SMALL, **settings: object
) -> SyntheticTrace:
    calibration = load_calibration("deepseek-v2-lite-prefill")
    return synthesize(calibration, shape, tokens, seed=seed, **settings)  # type: ignore[arg-type]


def whole(trace: SyntheticTrace) -> RoutingBlock:
    return join(list(trace.blocks()))


def test_the_seed_decides() -> None:
    assert np.array_equal(whole(make(3)).experts, whole(make(3)).experts)
    assert not np.array_equal(whole(make(3)).experts, whole(make(4)).experts)


def test_a_longer_trace_begins_like_a_shorter_one() -> None:
    short, long = whole(make(tokens=300)), whole(make(tokens=900))
    assert np.array_equal(long.experts[:250], short.experts[:250])


@pytest.mark.parametrize("ranks", [2, 4, 16])
@pytest.mark.parametrize("depth", [0, 3])
def test_blocks_are_legal(ranks: int, depth: int) -> None:
    trace = make(ranks=ranks, forecast_depth=depth, shape=replace(SMALL, normalized=True))
    last = -1
    for block in trace.blocks():
        check_block(block, trace.header, "test")
        last = check_order(block, last, "test")
        assert block.weights is not None
        assert np.allclose(block.weights.astype(float).sum(axis=-1), 1, atol=2e-3)
        assert block.scores is not None
        assert (np.diff(block.scores.astype(float), axis=-1) <= 0).all()
    assert totals(trace)["tokens"] == 700
    assert trace.header.synthetic


def test_given_document_lengths_repeat_and_the_last_is_cut() -> None:
    trace = make(tokens=1000, lengths=[300, 150])
    sizes = np.bincount(whole(trace).documents)
    assert sizes.tolist() == [300, 150, 300, 150, 100]


def test_forecasts_see_the_next_layer_better_than_the_one_after() -> None:
    block = whole(make(tokens=600, forecast_depth=2, forecast_ranks=2))
    assert block.forecast_experts is not None
    recalls = []
    for d in (0, 1):
        predicted = block.forecast_experts[:, : 3 - d, d]
        truth = block.experts[:, 1 + d :, :2]
        recalls.append((predicted[..., :, None] == truth[..., None, :]).any(-1).mean())
    assert 0.95 > recalls[0] > recalls[1] > 0.6


def test_logits_have_unit_variance_and_the_promised_memory() -> None:
    logits = Logits(0.1, 0.2, 0.2, 0.4, 0.1, 8.0, 0.3, 0.9, 0.0)
    model = LatentModel(logits, 6, 256, seed=1)
    z = np.concatenate([next(model.document(d, 64)).logits for d in range(60)], axis=1)
    assert z.var() == pytest.approx(1.0, abs=0.08)
    noiseless = replace(logits, popularity=0.0, document=0.0, slow=0.0, token=1.0, noise=0.0)
    pieces = LatentModel(noiseless, 6, 64, seed=1).document(0, 4000)
    latent = np.concatenate([p.latent for p in pieces], axis=1)
    in_time = np.mean(latent[:, 1:] * latent[:, :-1]) / latent.var()
    in_depth = np.mean(latent[1:] * latent[:-1]) / latent.var()
    assert in_time == pytest.approx(0.3, abs=0.05)
    assert in_depth == pytest.approx(0.9, abs=0.05)


@pytest.mark.parametrize("name", ["gpt-oss-20b-decode", "deepseek-v2-lite-prefill"])
def test_built_in_calibrations_match_the_real_statistics_they_carry(name: str) -> None:
    """Fresh random numbers, not those of the fit."""
    calibration = load_calibration(name)
    origin = calibration.provenance
    shape = TraceShape(
        "twin", origin["layers"], origin["experts"], origin["top_k"], name.startswith("gpt")
    )
    found = describe(synthesize(calibration, shape, 6000, seed=77, ranks=shape.top_k))
    for statistic, real in calibration.statistics.items():
        if statistic == "max_over_mean":  # a ratio, not a share
            assert found[statistic] == pytest.approx(real, rel=0.25)
        else:
            assert found[statistic] == pytest.approx(real, abs=0.07), statistic


def test_calibrations_survive_json_and_bad_ones_are_refused(tmp_path: Path) -> None:
    calibration = load_calibration("gpt-oss-20b-decode")
    assert Calibration.from_json(calibration.to_json(), "x") == calibration
    path = tmp_path / "bad.json"
    path.write_text(calibration.to_json().replace('"echo": ', '"echo": 1'))
    with pytest.raises(BadTrace, match=r"logits\.echo"):
        load_calibration(str(path))
    path.write_text("{}")
    with pytest.raises(BadTrace, match="cannot be read"):
        load_calibration(str(path))
    with pytest.raises(UnknownName, match="Did you mean 'gpt-oss-20b-decode'"):
        load_calibration("gpt-oss-20b-decod")


def test_which_calibration_for_which_model() -> None:
    names = ["deepseek-v2-lite-prefill", "gpt-oss-20b-decode", "mixtral-8x7b"]
    assert calibration_names() == names
    assert default_calibration("gpt-oss-120b", 128).name == "gpt-oss-20b-decode"
    assert default_calibration("mixtral-8x22b", 8).name == "mixtral-8x7b"
    assert default_calibration("Qwen3-30B-A3B").name == "deepseek-v2-lite-prefill"
    assert default_calibration("something-new", 64).name == "deepseek-v2-lite-prefill"


def test_the_search_finds_the_minimum() -> None:
    goal = np.array(list(START.values())) + np.linspace(-0.8, 0.8, len(START))
    mix = np.random.default_rng(0).standard_normal((20, len(START)))

    def tried(numbers: np.ndarray) -> Trial:
        return Trial(numbers, np.tanh(mix @ (numbers - goal) / 5))

    assert np.allclose(search(tried).numbers, goal, atol=0.02)


def test_a_fit_finds_what_the_trace_was_made_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitting, "TRIAL_TOKENS", 1500)
    monkeypatch.setattr(fitting, "TRIAL_LAYERS", 4)
    calls: list[int] = []
    source = make(tokens=1500)
    fitted = fit(source, "again", advance=lambda: calls.append(1))
    assert len(calls) == PARTS
    assert fitted.name == "again"
    assert fitted == fit(source, "again")  # the same answer every time
    real = describe_sample(collect(source))
    for name in ("overlap_1", "lru_cold_50", "predict_1", "active_32", "share_top_25"):
        assert fitted.statistics[name] == pytest.approx(real[name], abs=1e-4)
        assert fitted.synthetic_statistics[name] == pytest.approx(real[name], abs=0.08)
    shares = fitted.logits
    total = shares.popularity + shares.document + shares.slow + shares.token + shares.noise
    assert total == pytest.approx(1.0, abs=1e-3)


def test_a_fit_needs_enough() -> None:
    with pytest.raises(ImpossibleSetting, match="at least 1000 tokens"):
        fit(make(tokens=500))
    with pytest.raises(ImpossibleSetting, match="tokens must be at least 1"):
        make(tokens=0)


def test_numbers_of_the_search_are_shares() -> None:
    logits = to_logits(np.array(list(START.values())))
    assert logits.popularity / logits.token == pytest.approx(0.3)
    assert logits.memory_tokens == pytest.approx(8.0)


def test_the_bundled_trace_is_what_its_command_makes() -> None:
    path = bundled_trace("DeepSeek-V2-Lite")
    assert path is not None
    assert path.stat().st_size < 1_500_000
    source = open_trace(path)
    header = source.header
    assert (header.num_layers, header.num_experts, header.top_k, header.ranks) == (26, 64, 6, 12)
    assert "moesaic trace synthesize" in header.metadata["command"]
    stored = join(list(source.blocks()))
    assert len(stored) >= 1200
    assert header.seed is not None
    shape = TraceShape.of(load_model("deepseek-v2-lite"))
    made = whole(make(header.seed, 200, shape))
    # Rounding differs between machines, so a near tie may fall the other way.
    assert (made.experts == stored.experts[:200]).mean() > 0.995
    assert bundled_trace("no-such-model") is None
