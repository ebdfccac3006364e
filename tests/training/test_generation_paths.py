"""Does writing answers avoid what is slow to start?"""

from __future__ import annotations

import pytest
import torch
from small_recipes import random_network
from training.attention import masked_attention

from training import generation


def test_no_step_prepares_cudnn_for_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[bool] = []

    def watched(*tensors: torch.Tensor) -> torch.Tensor:
        allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
        return masked_attention(*tensors)

    monkeypatch.setattr(generation, "masked_attention", watched)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    generation.continue_texts(random_network(), [[5, 6, 7]], 3)
    assert allowed, "nothing was attended to"
    assert not any(allowed)
    assert torch.backends.cuda.cudnn_sdp_enabled() == before
