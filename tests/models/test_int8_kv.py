"""Does a KV cache in int8 say the same wherever its blocks lie and however a prompt was cut, and is
it what it stands for?"""

from __future__ import annotations

import pytest
import torch
from loaded_models import Ours, load

import stock
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.attentions.kv_codes import rounded, widened
from scattered_blocks import scatter
from stock_text import prompt

LENGTH = 200
PIECES = ((100, 30), (27, 0), (1, 97), (1, 1), (40, 1), (1, 1))  # new tokens of two sequences
# One of each kind of attention: grouped, latent, with windows, linear.
FAMILIES = ("qwen3-moe", "deepseek-v2", "gpt-oss", "qwen3-next")


def with_cache(family: str, kv_dtype: str = "int8", dtype: str = "fp32", slots: int = 2) -> Ours:
    ours = load(stock.saved(family).folder, dtype, slots)
    spec = ours.decoder.architecture.spec
    ours.cache = BlockCache(spec, slots, LENGTH, ours.decoder.dtype, kv_dtype=kv_dtype)
    return ours


def said(ours: Ours) -> torch.Tensor:
    """The logits of all pieces."""
    left, found = [prompt(LENGTH), prompt(LENGTH, seed=2)], list[torch.Tensor]()
    for piece in PIECES:
        slots = [slot for slot, count in enumerate(piece) if count]
        found += ours.logits([left[slot][: piece[slot]] for slot in slots], slots)
        left = [tokens[count:] for tokens, count in zip(left, piece, strict=True)]
    return torch.cat(found)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("kv_dtype", ["int8", "bf16"])
def test_wherever_blocks_lie(family: str, kv_dtype: str) -> None:
    side_by_side, scattered = with_cache(family, kv_dtype), with_cache(family, kv_dtype)
    scatter(scattered.cache)
    assert torch.equal(said(side_by_side), said(scattered))


@pytest.mark.parametrize("family", FAMILIES)
def test_however_a_prompt_is_cut(family: str) -> None:
    """Tokens of a prompt see each other as later ones see them."""
    whole, cut, exact = (with_cache(family, kv) for kv in ("int8", "int8", "auto"))
    tokens = prompt(90)
    (wanted,) = whole.logits([tokens], [0])
    pieces = [cut.logits([tokens[start : start + 13]], [0])[0] for start in range(0, 90, 13)]
    torch.testing.assert_close(torch.cat(pieces), wanted, atol=2e-5, rtol=0.0)
    (as_computed,) = exact.logits([tokens], [0])
    errors = (wanted - as_computed).norm(dim=-1) / as_computed.norm(dim=-1)
    assert 5e-4 < float(errors.median()) < 0.05, "rounding shows, as little as it may"


@pytest.mark.parametrize("family", FAMILIES)
def test_a_copy_and_a_truncated_sequence_go_on_alike(family: str) -> None:
    ours = with_cache(family, slots=3)
    scatter(ours.cache)
    tokens = prompt(LENGTH)
    ours.logits([tokens[:130]], [0])
    ours.cache.copy(0, 2)
    (wanted,) = ours.logits([tokens[130:150]], [0])
    (found,) = ours.logits([tokens[130:150]], [2])
    assert torch.equal(found, wanted)
    ours.cache.truncate(2, 148)
    (again,) = ours.logits([tokens[148:150]], [2])
    torch.testing.assert_close(again, wanted[18:], atol=2e-5, rtol=0.0)


def test_a_block_is_copied_with_its_scales() -> None:
    ours = with_cache("qwen3-moe")
    ours.logits([prompt(70)], [0])
    cache, source = ours.cache, int(ours.cache.table[0, 0])
    cache.copy_block(source, 7, 20)
    assert len(cache.parts) == 4
    for part in cache.parts:
        assert torch.equal(part[:, 7, :20], part[:, source, :20])
        assert not part[:, 7, 20:].any()


def test_what_is_kept_is_what_was_computed_rounded() -> None:
    """Keys of the first layer: nothing before them depends on the cache."""
    codes, exact = with_cache("qwen3-moe"), with_cache("qwen3-moe", "auto")
    for ours in (codes, exact):
        ours.logits([prompt(70)], [0])
    spec = exact.decoder.architecture.spec
    vectors = exact.cache.of(0)[0].flatten(0, 1)[:70]
    expected, scales = rounded(vectors, spec.num_kv_heads)
    first, _ = codes.cache.kept(0)
    assert first.scales is not None
    assert torch.equal(first.values.flatten(0, 1)[:70], expected)
    assert torch.equal(first.scales.flatten(0, 1)[:70], scales)
    read, _ = codes.cache.extend(0, 0, vectors[:1], vectors[:1])
    assert torch.equal(read[:70], widened(expected, scales, torch.float32))


def test_latents_have_codes_and_their_rotary_keys_have_not() -> None:
    cache = with_cache("deepseek-v2", dtype="bf16").cache
    latents, keys = cache.kept(0)
    assert (latents.values.dtype, keys.values.dtype) == (torch.int8, torch.bfloat16)
    assert latents.scales is not None
    assert latents.scales.shape[1:] == (KV_BLOCK, 1)
    assert keys.scales is None


def test_windows_and_states_stay_as_they_are_computed() -> None:
    for family in ("gpt-oss", "qwen3-next"):
        codes, exact = (with_cache(family, kv).cache for kv in ("int8", "auto"))
        kept, whole = (sum(part.nbytes for part in cache.parts) for cache in (codes, exact))
        assert kept < whole
        assert codes.nbytes - kept == exact.nbytes - whole
