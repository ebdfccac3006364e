"""Are vectors of the KV cache rounded to int8 as they should be, and attended to as what their
codes stand for?"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from moesaic.kernels.attended import Attended, AttendedBatch, Blocks, Scores
from moesaic.kernels.instruction_sets import ISA_NUMBERS, REFERENCE, available
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.models.attentions.kv_codes import rounded, widened
from moesaic.models.attentions.sequence_attention import attend_sequences

ISAS = [name for name in available() if name != REFERENCE]
if ISAS:
    from moesaic.hardware.host import usable_cores
    from moesaic.kernels import _native
    from moesaic.kernels.native_attention import NativeAttention
NAN, INFINITE = float("nan"), float("inf")


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("size", [1e-9, 1e-5, 0.01, 1.0, 1e4])
@pytest.mark.parametrize("heads", [1, 4])
def test_codes_are_the_nearest_and_scales_the_smallest(size: float, heads: int) -> None:
    vectors = size * drawn(300, 128, seed=1)
    codes, scales = rounded(vectors, heads)
    assert (codes.dtype, scales.dtype, codes.shape) == (torch.int8, torch.float16, vectors.shape)
    assert scales.shape == (300, heads)
    assert int(codes.abs().max()) <= 127
    parts = vectors.unflatten(-1, (heads, -1))
    off = (widened(codes, scales, torch.float32).unflatten(-1, (heads, -1)) - parts).abs().amax(-1)
    assert (off <= 0.5001 * scales.float()).all()
    below = (scales.view(torch.int16) - 1).view(torch.float16).float()
    assert (127 * below < parts.abs().amax(-1)).all(), "a smaller scale would be too small"


def test_what_is_not_finite_is_read_as_nan_and_zeros_as_zeros() -> None:
    vectors = torch.tensor([[NAN, 1.0], [INFINITE, 1.0], [1e9, 1.0], [0.0, -0.0], [2.0, -1.0]])
    codes, scales = rounded(vectors, 1)
    read = widened(codes, scales, torch.float32)
    assert read[:3].isnan().all()
    assert not codes[:3].any()
    assert read[3:].tolist() == [[0.0, 0.0], [pytest.approx(2, rel=0.01), pytest.approx(-1, 0.02)]]


@pytest.mark.skipif(not ISAS, reason="no native kernels here")
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("new", [1, 40, 150])
def test_native_attention_rounds_and_reads_the_same(isa: str, new: int) -> None:
    """Beside PyTorch over what codes stand for; single sequences and batches have the same bits."""
    every, heads, width = 150, 2, 64
    attention = NativeAttention(_native.Pool([-1] * (usable_cores() - 1), 50.0), ISA_NUMBERS[isa])
    queries = drawn(new, 6, width, seed=1).bfloat16()
    numbers = np.array([3, 0, 4], dtype=np.int32)
    places = (KV_BLOCK * numbers.repeat(KV_BLOCK) + np.tile(np.arange(KV_BLOCK), 3))[:every]
    kept, news, scales, wanted = [], [], [], []
    for seed in (2, 3):
        vectors = (3 * drawn(every, heads * width, seed=seed)).bfloat16()
        codes, scale = rounded(vectors, heads)
        wanted.append(widened(codes, scale, torch.float32).unflatten(-1, (heads, -1)))
        cache = torch.full((5 * KV_BLOCK, heads * width), 77, dtype=torch.int8)
        of_cache = torch.full((5 * KV_BLOCK, heads), NAN, dtype=torch.float16)
        cache[places[: every - new]] = codes[: every - new]
        of_cache[places[: every - new]] = scale[: every - new]
        kept.append(cache)
        scales.append(of_cache)
        news.append(vectors[every - new :])
    keys, values = (part.unflatten(-1, (heads, -1)) for part in kept)
    sequence = Attended(
        slice(0, new), keys, values, 0, (news[0], news[1]), Blocks(numbers, every),
        (scales[0], scales[1]),
    )  # fmt: skip
    assert attention.takes(queries, sequence)
    found = torch.empty(new, 6, width, dtype=torch.bfloat16)
    attention.attend(queries, [sequence], Scores(0.1), found)
    exact = Attended(slice(0, new), wanted[0], wanted[1])
    expected = attend_sequences(queries.float(), [exact], Scores(0.1), None)
    torch.testing.assert_close(found.float(), expected, atol=0.02, rtol=0.02)
    for cache, of_cache, vectors in zip(kept, scales, news, strict=True):
        codes, scale = rounded(vectors, heads)
        assert torch.equal(cache[places[every - new :]], codes)
        assert torch.equal(of_cache[places[every - new :]], scale)
    new_keys, new_values = (part.unflatten(-1, (heads, -1)) for part in news)
    batch = AttendedBatch(
        queries, new_keys, new_values, (kept[0], kept[1]),
        np.array([[0, new, every, numbers.ctypes.data]], dtype=np.int64), (scales[0], scales[1]),
    )  # fmt: skip
    assert attention.takes_batch(batch)
    assert torch.equal(attention.attend_batch(batch, Scores(0.1)), found)


@pytest.mark.skipif(not ISAS, reason="no native kernels here")
def test_codes_without_scales_are_left_to_pytorch() -> None:
    attention = NativeAttention(_native.Pool([], 50.0), ISA_NUMBERS[ISAS[0]])
    queries, codes = drawn(20, 2, 32, seed=1).bfloat16(), torch.zeros(20, 2, 32, dtype=torch.int8)
    scales = torch.ones(20, 2, dtype=torch.float16)
    sequence = Attended(slice(0, 20), codes, codes)
    assert not attention.takes(queries, sequence)
    assert attention.takes(queries, sequence._replace(scales=(scales, scales)))
    with_scales = Attended(slice(0, 20), queries, queries, scales=(scales, scales))
    assert not attention.takes(queries, with_scales)
