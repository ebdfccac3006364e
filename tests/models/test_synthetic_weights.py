"""Are random weights of large tensors drawn in part, and still different from row to row?"""

from __future__ import annotations

import pytest
import torch

from moesaic.models import synthetic_model
from moesaic.models.configs.synthetic_architecture import synthetic_architecture
from moesaic.models.synthetic_model import synthetic_decoder


def test_large_tensors_repeat_what_was_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    architecture = synthetic_architecture("moesaic-20m", 1)
    whole = synthetic_decoder(architecture, "fp32", "reference").embedding
    drawn = 3 * whole.shape[1] + 5
    monkeypatch.setattr(synthetic_model, "_DRAWN", drawn)
    part = synthetic_decoder(architecture, "fp32", "reference").embedding
    assert part.shape == whole.shape
    assert torch.equal(part.flatten()[drawn:], part.flatten()[:-drawn])
    assert len(part.unique(dim=0)) > 100
    assert float(part.std()) == pytest.approx(float(whole.std()), rel=0.2)
