"""Are blocks of the KV cache the same after a stay in main memory?"""

from __future__ import annotations

import pytest
import torch

from moesaic.machines.real.host_blocks import HostBlocks

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=needs_gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("widths", [(32, 32), (48, 8)])
def test_blocks_come_back_as_they_were(device: str, widths: tuple[int, int]) -> None:
    parts = [torch.randn(3, 9, 64, width).to(device, torch.bfloat16) for width in widths]
    before = [part.clone() for part in parts]
    copies = HostBlocks(parts, 4)
    copies.store([(8, 0), (2, 3), (5, 1)])
    for part in parts:
        part[:, [2, 5, 8]] = 7
    copies.load([(4, 3), (8, 1), (0, 0)])
    for part, old in zip(parts, before, strict=True):
        assert torch.equal(part[:, [4, 8, 0]], old[:, [2, 5, 8]])
        assert torch.equal(part[:, [1, 3, 6, 7]], old[:, [1, 3, 6, 7]])
        assert (part[:, [2, 5]] == 7).all()
    copies.close()


@pytest.mark.parametrize("device", DEVICES)
def test_the_block_that_is_stored_last_stays(device: str) -> None:
    part = torch.arange(2 * 3 * 64 * 4, dtype=torch.float32, device=device).reshape(2, 3, 64, 4)
    copies = HostBlocks([part], 1)
    copies.store([(0, 0), (2, 0)])
    copies.load([(1, 0)])
    assert torch.equal(part[:, 1], part[:, 2])
    copies.close()


@needs_gpu
def test_layers_that_lie_far_apart_are_copied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moesaic.kernels.gpu.driver._LONGEST_PITCH", 100)
    test_blocks_come_back_as_they_were("cuda", (32, 32))
