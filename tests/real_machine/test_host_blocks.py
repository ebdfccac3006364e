"""Are blocks of the KV cache the same after a stay in main memory?"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
import torch

from moesaic.kernels.gpu.driver import Rows
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
def test_blocks_side_by_side_are_one_copy(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    part = torch.arange(2 * 8 * 64 * 4, dtype=torch.float32, device=device).reshape(2, 8, 64, 4)
    before, copies = part.clone(), HostBlocks([part], 6)
    if device == "cpu":
        copied = as_on_a_gpu(copies, monkeypatch)
    copies.store([(6, 2), (4, 0), (5, 1), (0, 4), (1, 3)])
    part.zero_()
    copies.load([(3, 2), (1, 0), (2, 1), (7, 4), (6, 3)])
    assert torch.equal(part[:, [1, 2, 3, 6, 7]], before[:, [4, 5, 6, 1, 0]])
    assert not part[:, [0, 4, 5]].any()
    if device == "cpu":
        block = before[0, 0].nbytes
        assert copied == [width * block for width in (1, 1, 3, 3, 2)]
    copies.close()


def as_on_a_gpu(copies: HostBlocks, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Copies of rows, which the host makes. Returns their widths, in the order of the calls."""
    widths: list[int] = []

    def copy_rows(target: Rows, source: Rows, width: int, height: int, stream: int) -> None:
        widths.append(width)
        for row in range(height):
            to, of = (each.address + row * each.pitch for each in (target, source))
            ctypes.memmove(to, of, width)

    monkeypatch.setattr("moesaic.machines.real.host_blocks.copy_rows", copy_rows)
    monkeypatch.setattr("torch.cuda.current_stream", lambda: None)
    stream = SimpleNamespace(
        wait_stream=lambda other: None, synchronize=lambda: None, cuda_stream=0
    )
    monkeypatch.setattr(copies, "_stream", stream)
    return widths


@needs_gpu
def test_layers_that_lie_far_apart_are_copied_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moesaic.kernels.gpu.driver._LONGEST_PITCH", 100)
    test_blocks_come_back_as_they_were("cuda", (32, 32))
