"""Is a prompt's attention the same where it is native, however the prompt is cut and batched?"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from reference_experts import reference_experts

import stock
from moesaic.kernels.attended import Attended, AttendedBatch, Blocks, Scores
from moesaic.kernels.instruction_sets import REFERENCE, available, choose
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.attentions.sequence_attention import attend_sequences
from moesaic.models.open_model import load_decoder, open_model
from moesaic.models.token_batch import Segment
from stock_text import prompt

pytestmark = pytest.mark.skipif(available() == (REFERENCE,), reason="no native kernels here")
if available() != (REFERENCE,):
    from moesaic.kernels import native_attention
    from moesaic.kernels.native_attention import NativeAttention
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.model_info.dense_bytes import DensePrecision

NEVER = 1 << 30
# fmt: off
WIDE = {
    "qwen3-moe": {"head_dim": 32},
    "gpt-oss": {"head_dim": 32},
    "deepseek-v2": {  # a rank from which on 40 tokens are expanded
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32, "kv_lora_rank": 192,
    },
}
# fmt: on


def native() -> NativeAttention:
    return DenseRunner(DensePrecision.of("bf16"), choose()).attention


def drawn(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def attended(new: int, every: int, values: int = 32, first: int = 0, at: int = 0) -> Attended:
    keys = drawn(every, 2, 64, seed=2)[..., :32]  # as a cache has them: rows apart
    return Attended(slice(at, at + new), keys, drawn(every, 2, values, seed=3), first)


@pytest.mark.parametrize("scores", [Scores(0.3), Scores(0.3, 20), Scores(0.3, 70, torch.ones(6))])
@pytest.mark.parametrize(("new", "every"), [(16, 16), (90, 90), (40, 120)])
def test_it_is_pytorch_s_attention(new: int, every: int, scores: Scores) -> None:
    queries, sequence = drawn(new, 6, 32, seed=1), attended(new, every, values=64)
    found = attend_sequences(queries, [sequence], scores, native())
    wide = Attended(sequence.rows, sequence.keys.float(), sequence.values.float())
    wanted = attend_sequences(queries.float(), [wide], scores, None)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), wanted, atol=0.02, rtol=0.02)


def test_sequences_of_a_step_are_one_call_unless_all_are_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queries, attention = drawn(71, 6, 32, seed=1), native()
    sequences = [attended(30, 50), attended(1, 9, at=30), attended(40, 40, at=31)]
    calls = list[int]()
    run = attention.attend

    def counting(
        queries: torch.Tensor, sequences: list[Attended], scores: Scores, out: torch.Tensor
    ) -> None:
        calls.append(len(sequences))
        run(queries, sequences, scores, out)

    monkeypatch.setattr(attention, "attend", counting)
    together = attend_sequences(queries, sequences, Scores(0.3), attention)
    assert calls == [3]
    for each in sequences:
        rows = Attended(slice(0, each.tokens), *each[1:])
        alone = attend_sequences(queries[each.rows], [rows], Scores(0.3), attention)
        if each.tokens > 1:
            assert torch.equal(together[each.rows], alone)
        else:  # by PyTorch
            torch.testing.assert_close(together[each.rows], alone, atol=0.02, rtol=0.02)
    assert calls == [3, 1, 1]


@pytest.mark.parametrize("new", [1, 5, 40])
def test_a_sequence_in_blocks_has_the_bits_of_one_side_by_side(new: int) -> None:
    """New tokens are written where the blocks are."""
    every, attention = 150, native()
    queries, numbers = drawn(new, 6, 32, seed=1), np.array([3, 0, 4], dtype=np.int32)
    whole = attended(every, every)
    places = (KV_BLOCK * numbers.repeat(KV_BLOCK) + np.tile(np.arange(KV_BLOCK), 3))[:every]
    whole = whole._replace(keys=whole.keys.contiguous())
    keys, values = (
        torch.full((5 * KV_BLOCK, *part.shape[1:]), torch.nan, dtype=part.dtype)
        for part in (whole.keys, whole.values)
    )
    for scattered, part in ((keys, whole.keys), (values, whole.values)):
        scattered[places[: every - new]] = part[: every - new]
    rows, last = slice(0, new), slice(every - new, every)
    written = tuple(part[last].flatten(1).contiguous() for part in (whole.keys, whole.values))
    in_blocks = Attended(rows, keys, values, 0, (written[0], written[1]), Blocks(numbers, every))
    side_by_side = Attended(rows, whole.keys, whole.values)
    found, wanted = (torch.empty(new, 6, whole.values.shape[2], dtype=torch.bfloat16) for _ in "ab")
    assert attention.takes(queries, in_blocks)
    attention.attend(queries, [in_blocks], Scores(0.3), found)
    attention.attend(queries, [side_by_side], Scores(0.3), wanted)
    assert torch.equal(found, wanted)
    for scattered, part in ((keys, whole.keys), (values, whole.values)):
        assert torch.equal(scattered[places], part)


def test_bits_do_not_depend_on_how_a_prompt_is_cut() -> None:
    queries, whole = drawn(150, 6, 32, seed=1), attended(150, 150)
    scores, attention = Scores(0.3, 80), native()
    wanted = attend_sequences(queries, [whole], scores, attention)
    start, seen = 101, 101 - 79  # a cache with a window gives what the first new token sees
    piece = Attended(slice(0, 49), whole.keys[seen:], whole.values[seen:], seen)
    found = attend_sequences(queries[start:], [piece], scores, attention)
    assert torch.equal(found, wanted[start:])


@pytest.mark.parametrize("part", ["queries", "keys", "values"])
def test_what_is_not_finite_shows_where_it_is_seen(part: str) -> None:
    queries, whole = drawn(90, 2, 32, seed=1), attended(90, 90)
    attention, good = native(), None
    for value in (0.0, float("nan"), float("-inf")):
        {"queries": queries, "keys": whole.keys, "values": whole.values}[part][40, 1, 5] = value
        found = attend_sequences(queries, [whole], Scores(0.3), attention)
        if good is None:
            good = found
            continue
        reached = torch.zeros(90, 2, dtype=torch.bool)
        reached[40 : 41 if part == "queries" else 90, 1] = True
        assert found[reached].isnan().all()
        assert torch.equal(found[~reached], good[~reached])


@pytest.mark.parametrize("width", [16, 48, 288])
def test_other_widths_are_left_to_pytorch(width: int) -> None:
    keys = drawn(20, 1, width, seed=1)
    sequence = Attended(slice(0, 20), keys, keys)
    assert not native().takes(keys, sequence)
    assert attend_sequences(keys, [sequence], Scores(0.1), native()).shape == (20, 1, width)


def test_other_dtypes_and_strides_are_left_to_pytorch() -> None:
    good = drawn(20, 2, 32, seed=1)
    assert native().takes(good, Attended(slice(0, 20), good, good))
    for bad in (good.float(), drawn(20, 32, 2, seed=1).transpose(1, 2), good[:1].expand(20, 2, 32)):
        assert not native().takes(good, Attended(slice(0, 20), good, bad))
        assert not native().takes(bad, Attended(slice(0, 20), good, good))


@pytest.mark.parametrize("name", WIDE)
def test_networks_use_it(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with a prompt that goes on, with a window, with sinks, and with expanded latents."""
    model = open_model(stock.save(stock.make(name, **WIDE[name]), tmp_path))
    decoder = load_decoder(model, "bf16", dense=DenseRunner(DensePrecision.of("bf16"), choose()))
    experts = reference_experts(model)
    taken = list[bool]()
    takes, takes_batch = NativeAttention.takes, NativeAttention.takes_batch

    def batch_asked(self: NativeAttention, batch: AttendedBatch) -> bool:
        taken.append(takes_batch(self, batch))
        return taken[-1]

    def asked(self: NativeAttention, queries: torch.Tensor, sequence: Attended) -> bool:
        taken.append(takes(self, queries, sequence))
        return taken[-1]

    monkeypatch.setattr(NativeAttention, "takes", asked)
    monkeypatch.setattr(NativeAttention, "takes_batch", batch_asked)

    def hidden() -> torch.Tensor:
        cache = BlockCache(decoder.architecture.spec, 2, 160, decoder.dtype)
        first = decoder.forward(torch.tensor(prompt(40, seed=1)), [Segment(0, 40)], cache, experts)
        tokens = torch.tensor(prompt(120, seed=2) + prompt(64, seed=3))
        segments = [Segment(0, 120), Segment(1, 64)]
        return torch.cat((first, decoder.forward(tokens, segments, cache, experts)))

    got = hidden()
    assert all(taken)
    assert len(taken) >= decoder.architecture.spec.num_layers
    monkeypatch.setattr(native_attention, "MIN_TOKENS", NEVER)
    wanted = hidden()
    errors = (got - wanted).float().norm(dim=-1) / wanted.float().norm(dim=-1)
    assert float(errors.median()) < 0.02, "of hidden states; a router that flips moves some more"
