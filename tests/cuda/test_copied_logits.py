"""Are logits that come back the caller's own, few of them or many?"""

from __future__ import annotations

import pytest
import torch

from moesaic.machines.cuda.graph_steps import _COPIED_ALONE, _copied


@pytest.mark.parametrize("values", [7, _COPIED_ALONE, _COPIED_ALONE + 1])
def test_no_later_step_overwrites_them(values: int) -> None:
    kept = torch.arange(values, dtype=torch.float32).to(torch.bfloat16)
    expected, given = kept.clone(), _copied(kept)
    kept.zero_()
    assert given.dtype == torch.bfloat16
    assert torch.equal(given, expected)
