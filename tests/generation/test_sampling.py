"""May the sampler draw just what stock transformers may, with the same probabilities?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest
import stock_sampling as stock
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_examples import ASSORTED, EVERYTHING, draws, logits_of, probabilities
from scipy.stats import chi2
from transformers import GenerationConfig, GenerationMixin

from made_up import long
from moesaic.engine.sampling.candidates import Candidates
from moesaic.engine.sampling.sampler import Sampler
from moesaic.engine.sampling.sampling_params import SamplingParams
from moesaic.engine.sampling.sampling_state import SamplingState

TOLERANCE = 1e-6


def assert_same_distribution(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert torch.equal(ours > 0, theirs > 0)
    assert (ours - theirs).abs().max() < TOLERANCE


@pytest.mark.parametrize("vocabulary", [7, 300, 5000])
def test_a_batch_of_mixed_params_has_the_stock_distributions(vocabulary: int) -> None:
    drawing = [params for params in ASSORTED if not params.greedy]
    logits = logits_of(1, vocabulary, len(drawing))
    seen = [1, 2, 2, 6, 1, 4]
    ours = probabilities(logits, drawing, seen)
    for row, params in enumerate(drawing):
        assert_same_distribution(ours[row], stock.probabilities(logits[row], params, seen))


@given(
    st.integers(0, 2**32),
    st.sampled_from([2, 70, 1500]),
    st.builds(
        SamplingParams,
        temperature=st.floats(0.3, 5.0),
        top_k=st.sampled_from([0, 0, 1, 3, 63, 64, 200, 10**30]),
        top_p=st.sampled_from([1.0, 0.0]) | st.floats(0.01, 0.999),
        min_p=st.sampled_from([0.0, 1.0]) | st.floats(0.0, 0.9),
        repetition_penalty=st.sampled_from([1.0]) | st.floats(0.5, 2.0),
    ),
)
def test_any_params_have_the_stock_distribution(
    seed: int, vocabulary: int, params: SamplingParams
) -> None:
    logits = logits_of(seed, vocabulary)
    seen = [0, 1, vocabulary - 1, 0]
    ours = probabilities(logits, [params], seen)[0]
    assert_same_distribution(ours, stock.probabilities(logits[0], params, seen))


def test_the_order_is_that_of_generate() -> None:
    params = replace(EVERYTHING, min_tokens=3)
    config = GenerationConfig(
        do_sample=True,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        min_new_tokens=params.min_tokens,
    )
    config._eos_token_tensor = torch.tensor([2])
    model = SimpleNamespace(
        config=SimpleNamespace(is_encoder_decoder=False),
        _merge_criteria_processor_list=lambda processors, _: processors,
    )
    theirs = GenerationMixin._get_logits_processor(model, config, 1, device="cpu")
    ours = stock.processors(params, 1, [2])
    assert len(ours) == 6
    assert [type(one) for one in theirs] == [type(one) for one in ours]


def test_tokens_tied_with_the_kth_are_all_kept() -> None:
    """Also where they reach beyond the window that top-k looks through."""
    logits = torch.zeros(1, 3000)
    logits[0, 17] = 2.0
    ours = probabilities(logits, [SamplingParams(top_k=5)])[0]
    assert int((ours > 0).sum()) == 3000
    assert_same_distribution(ours, stock.probabilities(logits[0], SamplingParams(top_k=5)))


def test_a_flat_distribution_reaches_beyond_the_window() -> None:
    """One row of the batch must be looked at as a whole, the other need not."""
    logits = torch.cat([logits_of(2, 20_000, scale=0.1), logits_of(3, 20_000, scale=6.0)])
    params = [SamplingParams(top_p=0.9, min_p=0.5)] * 2
    ours = probabilities(logits, params)
    assert int((ours[0] > 0).sum()) > 10_000
    assert int((ours[1] > 0).sum()) < 100
    for row in range(2):
        assert_same_distribution(ours[row], stock.probabilities(logits[row], params[row]))


def test_no_probability_is_too_small_to_keep() -> None:
    """Without top-p nothing is cut off, however unlikely: fp64 cannot tell 1 from 1 + e^-45."""
    logits, params = torch.tensor([[0.0, -20.0, -45.0, -46.0]]), SamplingParams(top_k=3)
    ours = probabilities(logits, [params])[0]
    assert_same_distribution(ours, stock.probabilities(logits[0], params))


@pytest.mark.parametrize("top_p", [0.25, 0.5, 0.625, 0.75])
def test_top_p_stops_where_the_probability_is_just_reached(top_p: float) -> None:
    """Eighths are exact in binary; which of equals are kept is not prescribed."""
    logits, params = torch.zeros(1, 8), SamplingParams(top_p=top_p)
    kept = int((probabilities(logits, [params]) > 0).sum())
    assert kept == int((stock.probabilities(logits[0], params) > 0).sum()) == 8 * top_p


def test_a_draw_at_the_very_edge_is_a_token_with_weight() -> None:
    weights = torch.tensor([[0.0, 1.0, 0.0, 1.0, 0.0]])
    for uniform, token in ((0.0, 1), (0.49, 1), (0.5, 3), (1 - 2**-53, 3)):
        assert Candidates([0], None, weights).draw([uniform]) == [token]


# Are tokens drawn as often as their probabilities say?


def chi_square(tokens: list[int], expected: torch.Tensor) -> tuple[float, float]:
    """The statistic, and what a right sampler exceeds once in a million times. Tokens expected
    fewer than five times count as one."""
    hoped = expected * len(tokens)
    counts = torch.bincount(torch.tensor(tokens), minlength=len(expected)).double()
    assert not counts[expected == 0].any()
    common = hoped >= 5
    observed = torch.cat([counts[common], counts[~common].sum()[None]])
    hoped = torch.cat([hoped[common], hoped[~common].sum()[None]])
    observed, hoped = observed[hoped > 0], hoped[hoped > 0]
    assert len(hoped) > 5
    return float(((observed - hoped) ** 2 / hoped).sum()), float(chi2.isf(1e-6, len(hoped) - 1))


@pytest.mark.parametrize(
    "params",
    [
        long(SamplingParams()),
        EVERYTHING,
        SamplingParams(top_p=0.9),
        long(SamplingParams(temperature=0.5)),
    ],
    ids=["plain", "everything", "top-p", "cold"],
)
def test_frequencies_are_the_stock_probabilities(params: SamplingParams) -> None:
    logits = logits_of(4, 60, scale=1.5)
    likeliest = int(logits.argmax())
    tokens = draws(logits, params, 20_000, prompt=likeliest)
    statistic, bound = chi_square(tokens, stock.probabilities(logits[0], params, [likeliest]))
    assert statistic < bound


def test_the_bound_would_see_a_temperature_that_is_a_tenth_off() -> None:
    logits = logits_of(4, 60, scale=1.5)
    tokens = draws(logits, SamplingParams(temperature=1.1), 20_000)
    statistic, bound = chi_square(tokens, stock.probabilities(logits[0], SamplingParams()))
    assert statistic > bound


def test_successive_tokens_of_one_request_have_these_frequencies_too() -> None:
    logits = logits_of(5, 30, scale=1.0)
    row, sampler = SamplingState.start(SamplingParams(seed=1), []), Sampler()
    tokens = [sampler.sample(logits, [row])[0].token for _ in range(5000)]
    statistic, bound = chi_square(tokens, stock.probabilities(logits[0], row.params))
    assert statistic < bound


# Does a seed lead to the same tokens, whatever else is in the batch?


def generate(batch: Sequence[SamplingParams], steps: int, mine: int) -> list[int]:
    """Tokens of one request of a batch; its logits depend on the step only."""
    sampler = Sampler()
    rows = [SamplingState.start(params, [1, 2, 3]) for params in batch]
    for step in range(steps):
        logits = logits_of(100 + step, 2000, len(rows), scale=2.0)
        logits[mine] = logits_of(step, 2000, scale=2.0)[0]
        for row, sampled in zip(rows, sampler.sample(logits, rows), strict=True):
            row.append(sampled.token)
    return rows[mine].seen[3:].tolist()


@pytest.mark.parametrize("params", ASSORTED)
def test_a_seed_gives_the_same_tokens_in_any_company(params: SamplingParams) -> None:
    params = replace(params, seed=7)
    alone = generate([params], 12, 0)
    assert generate([params], 12, 0) == alone
    assert generate([params, *ASSORTED], 12, 0) == alone
    assert generate([*reversed(ASSORTED), params], 12, len(ASSORTED)) == alone
    assert generate([replace(params, seed=8), params], 12, 1) == alone


@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_company_does_not_change_a_bit_of_a_distribution(scale: float) -> None:
    logits = logits_of(6, 3000, len(ASSORTED), scale)
    drawing = [replace(params, temperature=params.temperature or 1.0) for params in ASSORTED]
    together = probabilities(logits, drawing)
    for row, params in enumerate(drawing):
        assert torch.equal(probabilities(logits[row : row + 1], [params])[0], together[row])


def test_seeds_differ_from_each_other_and_fresh_entropy_differs_each_time() -> None:
    seeds = [0, 1, -1, 2**70, None, None]
    runs = [generate([SamplingParams(seed=seed)], 10, 0) for seed in seeds]
    assert len({tuple(run) for run in runs}) == len(seeds)


def test_asking_for_log_probabilities_changes_no_token() -> None:
    plain, asking = (generate([replace(EVERYTHING, seed=3, logprobs=n)], 10, 0) for n in (None, 5))
    assert plain == asking


# Are the reported log-probabilities the model's own?


def test_log_probabilities_are_the_models_own() -> None:
    logits = logits_of(12, 400, 4).bfloat16()
    asked = [None, 0, 2, 7]
    rows = [SamplingState.start(replace(EVERYTHING, logprobs=n, seed=1), [3]) for n in asked]
    sampled = Sampler().sample(logits, rows)
    own = logits.double().log_softmax(-1)
    assert sampled[0].logprob is None
    for row, (one, count) in enumerate(zip(sampled, asked, strict=True)):
        assert len(one.alternatives) == (count or 0)
        best = own[row].topk(count or 0)
        assert [a.token for a in one.alternatives] == best.indices.tolist()
        reported = torch.tensor([a.logprob for a in one.alternatives], dtype=torch.float64)
        assert torch.allclose(reported, best.values, atol=1e-5, rtol=0)
        if one.logprob is not None:
            assert one.logprob == pytest.approx(float(own[row, one.token]), abs=1e-5)


def test_alternatives_are_as_many_as_there_are() -> None:
    logits = torch.tensor([[1.0, float("-inf"), 2.0]])
    row = SamplingState.start(SamplingParams(temperature=0.0, logprobs=20), [])
    assert [a.token for a in Sampler().sample(logits, [row])[0].alternatives] == [2, 0]
