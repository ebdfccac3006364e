"""Is every expert in one block of its own, where a copy and a kernel can use it?"""

from __future__ import annotations

import mmap
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from small_store import SHAPE, random_weights, small_store

from moesaic.core.numa import Node
from moesaic.core.routing import ExpertId
from moesaic.kernels.base import ALIGNMENT
from moesaic.kernels.choose import EXPERT_DTYPES, make_kernel
from moesaic.kernels.grouping import routed_sum
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.mapped_blocks import MappedBlocks
from moesaic.model_info.expert_shape import ExpertShape

LAYERS, EXPERTS = 3, 5
EVERY = [(layer, expert) for layer in range(LAYERS) for expert in range(EXPERTS)]


@pytest.mark.parametrize("dtype", EXPERT_DTYPES)
def test_every_block_is_aligned_contiguous_and_its_own(dtype: str) -> None:
    store = ExpertStore(make_kernel(SHAPE, dtype), LAYERS, EXPERTS)
    size = store.kernel.block_bytes
    starts = [store.block(*at).data_ptr() for at in EVERY]
    for at, start in zip(EVERY, starts, strict=True):
        block = store.block(*at)
        assert block.dtype == torch.uint8
        assert block.shape == (size,)
        assert block.is_contiguous()
        assert start % ALIGNMENT == 0
    assert all(b - a >= size for a, b in pairwise(sorted(starts)))
    assert store.bytes == LAYERS * EXPERTS * size


@pytest.mark.parametrize("at", EVERY)
def test_writing_one_expert_changes_no_other(at: tuple[int, int]) -> None:
    store = small_store(LAYERS, EXPERTS)
    before = {other: store.block(*other).clone() for other in EVERY}
    store.put(ExpertId(*at), random_weights(seed=99))
    changed = [other for other in EVERY if not torch.equal(store.block(*other), before[other])]
    assert changed == [at]


def test_any_expert_computes_what_its_weights_say() -> None:
    """In plain torch, from the unpacked matrices."""
    store = small_store(LAYERS, EXPERTS)
    x = torch.randn((4, SHAPE.hidden), generator=torch.Generator().manual_seed(1))
    chosen, ones = torch.zeros((4, 1), dtype=torch.int64), torch.ones((4, 1))
    for number, (layer, expert) in enumerate(EVERY):
        block, weights = store.block(layer, expert), random_weights(number)
        out = routed_sum(store.kernel, {0: block}.__getitem__, x, chosen, ones)
        inner = torch.nn.functional.silu(x @ weights.gate.T) * (x @ weights.up.T)
        torch.testing.assert_close(out, inner @ weights.down.T)


@pytest.mark.parametrize("count", [1, 2, 4, 7, 15, 40])
def test_some_blocks_are_different_ones_from_all_over(count: int) -> None:
    store = small_store(LAYERS, EXPERTS)
    blocks = store.some_blocks(count)
    assert len(blocks) == min(count, len(EVERY))
    assert len({block.data_ptr() for block in blocks}) == len(blocks)
    if count >= LAYERS:
        rows = [{store.block(*at).data_ptr() for at in EVERY if at[0] == n} for n in range(LAYERS)]
        assert all(any(b.data_ptr() in row for b in blocks) for row in rows)


def test_the_store_asks_for_huge_pages_where_the_system_gives_them() -> None:
    """Memory shared between processes would follow another rule, and mostly get none."""
    store = ExpertStore(make_kernel(ExpertShape(1024, 512), "fp32"), 1, 4)
    start = store.block(0, 0).data_ptr()
    maps = Path("/proc/self/smaps")
    if not maps.exists() or not store.huge_pages:
        pytest.skip("no huge pages to be had here")
    regions = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", maps.read_text())
    (ours,) = [r for r in regions if _within(start, r.split(" ", 1)[0])]
    assert " hg" in ours.split("VmFlags:")[1], "asked for"
    assert "/" not in ours.splitlines()[0], "anonymous, not shared"


def _within(address: int, region: str) -> bool:
    first, last = (int(edge, 16) for edge in region.split("-"))
    return first <= address < last


# Is a mapped file read where it lies, shared, and never written?

MAPPED_LAYERS, MAPPED_EXPERTS, START = 3, 5, 8192


@pytest.fixture
def file(tmp_path: Path) -> Path:
    store = small_store(MAPPED_LAYERS, MAPPED_EXPERTS)
    data = b"".join(store.rows(layer).numpy().tobytes() for layer in range(MAPPED_LAYERS))
    path = tmp_path / "blocks"
    path.write_bytes(b"\1" * START + data)
    return path


def mapped_store(file: Path) -> ExpertStore:
    kernel = make_kernel(SHAPE, "fp32")
    return ExpertStore(kernel, MAPPED_LAYERS, MAPPED_EXPERTS, mapped=MappedBlocks(file, START))


def test_blocks_are_those_of_the_file(file: Path, recwarn: pytest.WarningsRecorder) -> None:
    store, expected = mapped_store(file), small_store(MAPPED_LAYERS, MAPPED_EXPERTS)
    for layer in range(MAPPED_LAYERS):
        for expert in range(MAPPED_EXPERTS):
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
        ExpertStore(kernel, MAPPED_LAYERS, MAPPED_EXPERTS, nodes, MappedBlocks(file, START))


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
