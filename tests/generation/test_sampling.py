"""May the sampler draw just what stock transformers may, with the same probabilities?"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import stock_sampling as stock
import torch
from hypothesis import given
from hypothesis import strategies as st
from sampling_examples import ASSORTED, EVERYTHING, logits_of, probabilities
from transformers import GenerationConfig, GenerationMixin

from moesaic.engine.sampling.candidates import Candidates
from moesaic.engine.sampling.sampling_params import SamplingParams

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
