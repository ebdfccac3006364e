"""Is a mapped file read where it lies, shared, and never written?"""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from small_store import SHAPE, random_weights, small_store

from moesaic.core.numa import Node
from moesaic.core.routing import ExpertId
from moesaic.kernels.choose import make_kernel
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.mapped_blocks import MappedBlocks

LAYERS, EXPERTS, START = 3, 5, 8192


@pytest.fixture
def file(tmp_path: Path) -> Path:
    store = small_store(LAYERS, EXPERTS)
    data = b"".join(store.rows(layer).numpy().tobytes() for layer in range(LAYERS))
    path = tmp_path / "blocks"
    path.write_bytes(b"\1" * START + data)
    return path


def mapped_store(file: Path) -> ExpertStore:
    kernel = make_kernel(SHAPE, "fp32")
    return ExpertStore(kernel, LAYERS, EXPERTS, mapped=MappedBlocks(file, START))


def test_blocks_are_those_of_the_file(file: Path, recwarn: pytest.WarningsRecorder) -> None:
    store, expected = mapped_store(file), small_store(LAYERS, EXPERTS)
    for layer in range(LAYERS):
        for expert in range(EXPERTS):
            assert torch.equal(store.block(layer, expert), expected.block(layer, expert))
    assert not list(recwarn)


def test_pages_are_the_files_own_and_read_only(file: Path) -> None:
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no list of mappings here")
    store = mapped_store(file)
    (line,) = [line for line in maps.read_text().splitlines() if line.endswith(str(file))]
    assert line.split()[1] == "r--s"
    start, end = (int(address, 16) for address in line.split()[0].split("-"))
    assert start <= store.block(0, 0).data_ptr() < end


def test_a_mapped_file_is_not_written_or_spread(file: Path) -> None:
    with pytest.raises(AssertionError, match="not written"):
        mapped_store(file).put(ExpertId(0, 0), random_weights(1))
    nodes = (Node(0, (0,)), Node(1, (1,)))
    kernel = make_kernel(SHAPE, "fp32")
    with pytest.raises(AssertionError, match="not spread"):
        ExpertStore(kernel, LAYERS, EXPERTS, nodes, MappedBlocks(file, START))


def test_every_page_is_in_memory_after_populating(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the system's call, and by touching pages where there is none."""
    blocks = MappedBlocks(file, START)
    size = file.stat().st_size - START
    blocks.populate(0, size)
    monkeypatch.setattr("moesaic.machines.real.mapped_blocks._POPULATE_READ", 9999)
    blocks.populate(3, size - 3)


def test_a_system_without_huge_pages(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Linux names them."""
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE")
    assert MappedBlocks(file, START).blocks(8).numel() == 8
