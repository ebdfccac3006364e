"""Do sources with classes of experts give each class its share of the tokens?"""

from __future__ import annotations

import numpy as np
import pytest

from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.runs import Workload
from moesaic.reproductions.trimoe.sources import level_weights, loads_of, synthetic_choices

LEVELS = ((0.1, 0.2), (0.3, 0.6), (0.6, 0.2))


def test_weights_are_those_of_the_probabilities() -> None:
    """Ten experts, top-2: the first is chosen by 0.4 of the tokens, three by 0.4 each, six by 1/15
    each."""
    weights = level_weights(LEVELS, 10, 2)
    assert 1 - np.exp(-weights) == pytest.approx([0.4] * 4 + [1 / 15] * 6)


def test_a_class_gets_its_share_of_the_tokens() -> None:
    spec = Workload(paper.QWEN, 512, layers=4).spec()
    steps = np.stack([loads_of(c, 128) for c in synthetic_choices("three-classes", spec, 512, 8)])
    ordered = np.sort(steps, axis=-1)[..., ::-1]
    total = ordered.sum()
    assert ordered[..., 38:].sum() / total == pytest.approx(0.08, abs=0.03)
    assert ordered[..., 2:38].sum() / total == pytest.approx(0.70, abs=0.06)
