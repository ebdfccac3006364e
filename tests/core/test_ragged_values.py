"""Does a routing with fewer than top-k experts for some tokens count only what is used?"""

from __future__ import annotations

import numpy as np
import pytest

from made_up import routing_of, view_of
from moesaic.core.errors import IllegalPlan
from moesaic.core.layer_plan import LayerPlan
from moesaic.core.legality import check
from moesaic.core.offloading import CPU, GPU
from moesaic.core.routing import UNUSED, Forecast, cut

WHOLE = routing_of(1, [[4, 0, 2], [0, 3, 1], [5, 4, 0]])
RAGGED = cut(WHOLE, np.array([1, 3, 2]))


def test_cutting_pads_with_no_expert_and_no_weight() -> None:
    assert RAGGED.experts.tolist() == [[4, -1, -1], [0, 3, 1], [5, 4, -1]]
    assert (RAGGED.weights == np.where(RAGGED.experts == UNUSED, 0, WHOLE.weights)).all()
    assert RAGGED.weights.dtype == np.float32
    assert (RAGGED.ranked == WHOLE.ranked).all()  # what the router preferred stays known
    assert WHOLE.experts.min() >= 0


def test_only_used_experts_have_tokens() -> None:
    assert WHOLE.used().tolist() == [4, 0, 2, 0, 3, 1, 5, 4, 0]
    assert RAGGED.used().tolist() == [4, 0, 3, 1, 5, 4]
    assert RAGGED.loads(6).tolist() == [1, 1, 0, 1, 2, 1]
    assert WHOLE.loads(6).tolist() == [3, 1, 1, 1, 2, 1]


def test_an_expert_that_no_token_uses_need_not_and_must_not_be_computed() -> None:
    view = view_of([(1, 0)], slots=1, layers=2, experts=6)
    plan = LayerPlan(1, {GPU: (0,), CPU: (4, 1, 3, 5)})
    check(plan, RAGGED.loads(6), view)
    with pytest.raises(IllegalPlan, match="expert 2 has 1 tokens and no device"):
        check(plan, WHOLE.loads(6), view)
    every = LayerPlan(1, {GPU: (0,), CPU: (4, 1, 2, 3, 5)})
    with pytest.raises(IllegalPlan, match="expert 2 is computed without tokens"):
        check(every, RAGGED.loads(6), view)


def test_routings_and_forecasts_say_which_pass_they_speak_of() -> None:
    assert WHOLE.step == 0
    later = RAGGED.at_step(7)
    assert (later.step, RAGGED.step) == (7, 0)
    assert later.counts is RAGGED.counts
    assert later.at_step(7) is later
    ahead = Forecast(2, WHOLE.ranked, WHOLE.scores)
    assert ahead.step is None
    assert Forecast(0, WHOLE.ranked, WHOLE.scores, step=8).step == 8
