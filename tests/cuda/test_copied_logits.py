"""Are logits that come back the caller's own, few of them or many?"""

from __future__ import annotations

import pytest
import torch

from moesaic.machines.captured.copied_rows import COPIED_ALONE, copied


@pytest.mark.parametrize("values", [7, COPIED_ALONE, COPIED_ALONE + 1])
def test_no_later_step_overwrites_them(values: int) -> None:
    kept = torch.arange(values, dtype=torch.float32).to(torch.bfloat16)
    expected, given = kept.clone(), copied(kept)
    kept.zero_()
    assert given.dtype == torch.bfloat16
    assert torch.equal(given, expected)


def test_tokens_are_the_callers_own_too() -> None:
    kept = torch.tensor([5, -1, 7])
    given = copied(kept[:2])
    kept.zero_()
    assert given.tolist() == [5, -1]
