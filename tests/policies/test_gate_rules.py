"""Do the gates `little` and `big-little` say what Algorithm 1 of the MoBiLE paper says?"""

from __future__ import annotations

import numpy as np
import pytest

from moesaic.core.confidence import Confidence
from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.policies.gate import gates
from moesaic.policies.gate.base import Gate, GateStep
from moesaic.policies.gate.big_little import BigLittle
from moesaic.policies.gate.little import Little
from moesaic.policies.gate.measures import measured
from moesaic.policies.gate.self_speculative import SelfSpeculative
from moesaic.policies.policy_choice import choose

# Two sequences that decode, one that runs its token again, and a piece of a prompt.
MIXED = GateStep((1, 1, 1, 3), (False, False, False, True), (0, 0, 1, 0))


def gate(text: str, top_k: int = 8) -> Gate:
    return choose(gates, text).create(gates, top_k)


def confidence(*tops: float) -> Confidence:
    """Of distributions over one likely token and one that has the rest."""
    top = np.array(tops, dtype=np.float32)
    rest = np.maximum(1 - top, 1e-30)
    return Confidence(top, np.maximum(top - rest, 0), -(top * np.log(top) + rest * np.log(rest)))


@pytest.mark.parametrize(
    ("text", "k"), [("little", 4), ("little:k=1", 1), ("little:k=8", 8), ("big-little:k=6", 6)]
)
def test_only_first_attempts_at_decoded_tokens_are_little(text: str, k: int) -> None:
    counts = gate(text).experts_per_token(MIXED)
    again = 8 if text.startswith("big") else k
    assert counts is not None
    assert counts.tolist() == [k, k, again, 8, 8, 8]


@pytest.mark.parametrize(("top_k", "half"), [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (8, 4)])
def test_the_little_model_has_half_of_the_experts(top_k: int, half: int) -> None:
    assert Little(top_k).k == BigLittle(top_k).k == half


@pytest.mark.parametrize("text", ["little", "big-little"])
def test_prompts_are_read_with_all_experts(text: str) -> None:
    assert gate(text).experts_per_token(GateStep.of_prompt(7)) is None
    assert gate(text).experts_per_token(GateStep((1, 5), (True, True), (0, 0))) is None


def test_a_pass_of_second_attempts_is_the_whole_model() -> None:
    assert gate("big-little").experts_per_token(GateStep((1, 1), (False,) * 2, (1, 2))) is None


def test_a_token_stands_where_the_confidence_is_above_gamma() -> None:
    """Line 5 of the algorithm: above, not at."""
    exact = np.float32(0.5)
    asked = GateStep.decode(3)
    tops = Confidence(
        np.array([np.nextafter(exact, 0), exact, np.nextafter(exact, 1)], dtype=np.float32),
        *np.full((2, 3), np.nan, dtype=np.float32),
    )
    assert gate("big-little:gamma=0.5").judge(asked, tops).tolist() == [True, True, False]


def test_gamma_is_seven_tenths_of_the_top_probability_unless_said_otherwise() -> None:
    judged = gate("big-little").judge(GateStep.decode(2), confidence(0.69, 0.71))
    assert judged.tolist() == [True, False]


def test_a_gamma_of_one_keeps_nothing_even_where_a_softmax_rounds_up() -> None:
    above = Confidence(*np.full((3, 1), np.nextafter(np.float32(1), 2), dtype=np.float32))
    for measure in ("top-probability", "margin"):
        judged = gate(f"big-little:gamma=1,confidence={measure}").judge(GateStep.decode(1), above)
        assert judged.tolist() == [True]


def test_gates_that_keep_every_token_ask_for_no_confidence() -> None:
    assert not gate("big-little:gamma=0,confidence=margin").reruns
    assert not gate("big-little:k=8").reruns
    assert not gate("big-little", top_k=1).reruns
    assert not gate("little").reruns
    assert gate("big-little:gamma=0.01").reruns


def test_steps_are_described_per_sequence() -> None:
    assert GateStep.decode(2) == GateStep((1, 1), (False, False), (0, 0))
    assert GateStep.of_prompt(7) == GateStep((7,), (True,), (0,))
    assert MIXED.sequences([3, 2]) == GateStep((3, 1), (True, False), (0, 1))


def test_a_gate_keeps_every_token_and_prefetches_one_layer_ahead_unless_it_says_more() -> None:
    judged = gate("little").judge(GateStep.decode(2), confidence(0.1, 0.1))
    assert judged.tolist() == [False, False]
    assert judged.dtype == np.bool_, "it is a mask"
    assert gate("full").prefetch_distance(1, 1000) == 1


def test_drafts_are_little_and_their_check_is_the_whole_model() -> None:
    counts = gate("self-speculative:k=2").experts_per_token(MIXED)
    assert counts is not None
    assert counts.tolist() == [2, 2, 8, 8, 8, 8]
    check = GateStep((5, 5), (False, False), (1, 1))
    assert gate("self-speculative").experts_per_token(check) is None


def test_drafts_of_the_whole_model_need_no_check() -> None:
    assert (gate("self-speculative").draft, gate("self-speculative:draft=2").draft) == (4, 2)
    assert gate("self-speculative:k=8").draft == 0
    assert gate("self-speculative", top_k=1).draft == 0


@pytest.mark.parametrize(("transfer_ns", "layers"), [(1, 1), (50, 2), (51, 3), (1000, 3)])
def test_checks_prefetch_as_far_ahead_as_what_drafts_did_not_use_takes(
    transfer_ns: int, layers: int
) -> None:
    """Four experts beyond k = 4 of 8, over a layer of 100 ns."""
    assert gate("self-speculative").prefetch_distance(100, transfer_ns) == layers


@pytest.mark.parametrize("kind", [Little, BigLittle, SelfSpeculative])
def test_no_gate_is_made_with_less_than_one_expert(kind: type[Gate]) -> None:
    with pytest.raises(ImpossibleSetting, match="from 1 to 8"):
        kind(8, k=0)  # type: ignore[call-arg]


def test_measures_rise_from_not_sure_to_sure() -> None:
    equal = Confidence(
        np.array([0.25], dtype=np.float32),
        np.array([0.0], dtype=np.float32),
        np.log(np.array([4.0], dtype=np.float32)),
    )
    assert measured("top-probability", equal) == pytest.approx([0.25])
    assert measured("margin", equal) == pytest.approx([0.0])
    assert measured("entropy", equal) == pytest.approx([0.25]), "one in four, as the top is"
    sure = confidence(0.55, 0.8, 0.99)
    for name in ("top-probability", "margin", "entropy"):
        values = measured(name, sure)
        assert (np.diff(values) > 0).all()
        assert (values <= sure.top + 1e-6).all()


@pytest.mark.parametrize(
    ("measure", "kept"), [("top-probability", True), ("margin", False), ("entropy", False)]
)
def test_the_measure_that_was_asked_for_is_compared(measure: str, kept: bool) -> None:
    """Top 0.75, margin 0.5, exp of minus the entropy 0.57."""
    judged = gate(f"big-little:confidence={measure}").judge(GateStep.decode(1), confidence(0.75))
    assert judged.tolist() == [not kept]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("big-little:gamma=1.01", "at least 0 and at most 1"),
        ("big-little:gamma=-0.1", "at least 0 and at most 1"),
        ("big-little:gamma=nan", "at least 0 and at most 1"),
        ("big-little:k=9", "k must be a whole number from 1 to 8, or auto, which is 4 here"),
        ("little:k=9", "k must be a whole number from 1 to 8"),
        ("little:k=0", "at least 1"),
        ("big-little:confidence=luck", "top-probability | margin | entropy"),
        ("big-little:distance=4", "at least 1 and at most 3"),
        ("big-little:distance=0", "at least 1 and at most 3"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(text: str, words: str) -> None:
    with pytest.raises(ImpossibleSetting) as caught:
        gate(text)
    assert words in str(caught.value)


def test_thresholds_of_measures_that_do_not_exist_are_refused() -> None:
    with pytest.raises(UnknownName, match="gamma"):
        gate("big-little:gama=0.5")


@pytest.mark.parametrize(("transfer_ns", "layers"), [(1, 1), (25, 1), (26, 2), (60, 3), (900, 3)])
def test_distance_covers_the_link_time_of_the_experts_left_out(
    transfer_ns: int, layers: int
) -> None:
    """Four experts beyond k, layers of 100 ns."""
    assert gate("big-little").prefetch_distance(100, transfer_ns) == layers
    assert gate("big-little:distance=2").prefetch_distance(100, transfer_ns) == 2
