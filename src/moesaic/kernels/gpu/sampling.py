"""Tokens sampled from bf16 logits, in Triton, by the rules of the engine's own sampler:
temperature, top-k, top-p, min-p, and one given random number per row. Nothing is sorted.

A logit of 16 bits has one of 65 536 values, and equal logits weigh the same. So tokens are counted
by value first, the highest value at rank 0; what filters keep, and which value a number leads to,
is then found by walking the counts from the best rank down, in fp64; and at last the token is
looked for that is the n-th, by id, with that value. A row without filters draws by id, over all
tokens, as on the host.

A row's six numbers (fp64): the random number, the temperature (0: the row is not used), top-k,
top-p (infinity: all), min-p, and whether there are filters at all. The greedy choice is top-k 1 and
the number 0."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

WORDS = 6  # numbers of a row
_ROWS = 32  # counted at a time, at most
_RANKS = tl.constexpr(65536)
_STRIDE = tl.constexpr(65536 + 64)  # of a row's counts, with the best rank behind them
_POSITIVE_INFINITY = tl.constexpr(0x7F)  # ranks; lower ones are no numbers
_NEGATIVE_INFINITY = tl.constexpr(0xFF80)
_COUNTED = 2048  # logits of a program
_LOADED = 8192  # logits at a time
_WALKED = 4096  # ranks at a time


@triton.jit
def _rank(bits):
    """The rank of a bf16 number; 0 for NaN."""
    bits = tl.where(bits == 0x8000, 0, bits)  # -0 is 0
    rank = tl.where(bits >= 0x8000, bits, 0x7FFF - bits)
    return tl.where((bits & 0x7FFF) > 0x7F80, 0, rank)


@triton.jit
def _value(rank):
    bits = tl.where(rank >= 0x8000, rank, 0x7FFF - rank)
    return (bits << 16).to(tl.float32, bitcast=True)


@triton.jit
def _weight(value, best, temperature):
    return tl.exp(tl.div_rn(value - best, temperature))


@triton.jit
def _bits(logits, at, VOCABULARY: tl.constexpr):
    return tl.load(logits + at, mask=at < VOCABULARY, other=0).to(tl.int32) & 0xFFFF


@triton.jit
def _count(logits, rows, counts, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """How many tokens of a row have each value."""
    row = tl.program_id(0)
    if tl.load(rows + 6 * row + 1) == 0.0:
        return
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < VOCABULARY
    rank = _rank(_bits(logits + row * VOCABULARY, at, VOCABULARY))
    counts += row * _STRIDE
    tl.atomic_add(counts + rank, 1, mask=there, sem="relaxed")
    highest = tl.max(tl.where(there, _RANKS - rank, 0), 0)
    tl.atomic_max(counts + _RANKS, highest, sem="relaxed")


@triton.jit
def _ranks(counts, start, seen, best, temperature, top_k, BLOCK: tl.constexpr):
    """For a block of ranks: how many tokens top-k keeps of each (all that are tied with the k-th),
    and what one of them weighs. `seen`: tokens of the ranks in front."""
    rank = start + tl.arange(0, BLOCK)
    count = tl.load(counts + rank, mask=rank < _RANKS, other=0)
    value = _value(tl.minimum(rank, _NEGATIVE_INFINITY))  # no number has a rank below that
    weight = tl.where(count > 0, _weight(value, best, temperature), 0.0)
    before = seen + tl.cumsum(count, 0) - count
    return tl.where(before < top_k, count, 0), weight


@triton.jit
def _kept(count, weight, above, limit, min_p):
    """How many tokens of each rank top-p and min-p leave. A token is kept while those in front of
    it weigh less than `limit`; `above`: what the ranks in front of the block weigh."""
    wide = tl.where(weight > 0.0, weight, 1.0).to(tl.float64)
    mass = count * weight.to(tl.float64)
    likelier = above + (tl.cumsum(mass, 0) - mass)
    fit = tl.maximum(tl.ceil((limit - likelier) / wide), 0.0)
    kept = tl.minimum(count.to(tl.float64), fit)
    return tl.where((weight > 0.0) & (weight >= min_p), kept, 0.0)


@triton.jit
def _by_id(logits, aim, best, temperature, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """The first token at which the weights of all up to it, by id, exceed `aim`."""
    start, token = 0, -1
    reached = aim * 0.0
    step = tl.arange(0, BLOCK)
    while (start < VOCABULARY) & (token < 0):
        bits = _bits(logits, start + step, VOCABULARY)
        value = (bits << 16).to(tl.float32, bitcast=True)
        there = start + step < VOCABULARY
        weight = tl.where(there, _weight(value, best, temperature), 0.0).to(tl.float64)
        mass = tl.sum(weight, 0)
        if reached + mass > aim:
            before = reached + (tl.cumsum(weight, 0) - weight)
            token = start + tl.max(tl.where((weight > 0.0) & (before <= aim), step, 0), 0)
        reached += mass
        start += BLOCK
    return token


@triton.jit
def _nth_of_rank(logits, rank, nth, VOCABULARY: tl.constexpr, BLOCK: tl.constexpr):
    """The nth token of this rank by id, from 0."""
    start, token = 0, -1
    step = tl.arange(0, BLOCK)
    while (start < VOCABULARY) & (token < 0):
        same = (_rank(_bits(logits, start + step, VOCABULARY)) == rank).to(tl.int32)
        same = tl.where(start + step < VOCABULARY, same, 0)
        found = tl.sum(same, 0)
        if nth < found:
            token = start + tl.sum((tl.cumsum(same, 0) <= nth).to(tl.int32), 0)
        nth -= found
        start += BLOCK
    return token


@triton.jit
def _mass(counts, first, best, temperature, top_k, BLOCK: tl.constexpr):
    """What all tokens that top-k keeps weigh together."""
    start, seen = first, 0
    mass = tl.full((), 0.0, tl.float64)
    while (start < _RANKS) & (seen < top_k):
        count, weight = _ranks(counts, start, seen, best, temperature, top_k, BLOCK)
        mass += tl.sum(count * weight.to(tl.float64), 0)
        seen += tl.sum(count, 0)
        start += BLOCK
    return mass


@triton.jit
def _drawn_rank(counts, first, best, number, temperature, top_k, limit, min_p, BLOCK: tl.constexpr):
    """The rank that a number leads to among kept tokens, and which of its tokens: first what is
    kept is weighed, then walked again up to the number's share of it."""
    start, seen = first, 0
    above = tl.full((), 0.0, tl.float64)
    total = tl.full((), 0.0, tl.float64)
    while (start < _RANKS) & (seen < top_k) & (above < limit):
        count, weight = _ranks(counts, start, seen, best, temperature, top_k, BLOCK)
        total += tl.sum(_kept(count, weight, above, limit, min_p) * weight.to(tl.float64), 0)
        above += tl.sum(count * weight.to(tl.float64), 0)
        seen += tl.sum(count, 0)
        start += BLOCK
    aim = number * total
    reached = tl.full((), 0.0, tl.float64)
    above = tl.full((), 0.0, tl.float64)
    start, seen, rank, nth = first, 0, -1, 0
    step = tl.arange(0, BLOCK)
    while (start < _RANKS) & (rank < 0):
        count, weight = _ranks(counts, start, seen, best, temperature, top_k, BLOCK)
        kept = _kept(count, weight, above, limit, min_p)
        part = kept * weight.to(tl.float64)
        mass = tl.sum(part, 0)
        if reached + mass > aim:
            before = reached + (tl.cumsum(part, 0) - part)
            index = tl.max(tl.where((kept > 0.0) & (before <= aim), step, 0), 0)
            here = step == index
            beyond = tl.sum(tl.where(here, aim - before, 0.0), 0)
            own = tl.sum(tl.where(here, weight, 0.0), 0).to(tl.float64)
            most = tl.sum(tl.where(here, kept, 0.0), 0) - 1.0
            nth = tl.minimum(tl.floor(beyond / own), most).to(tl.int32)
            rank = start + index
        reached += mass
        above += tl.sum(count * weight.to(tl.float64), 0)
        seen += tl.sum(count, 0)
        start += BLOCK
    return rank, nth


@triton.jit
def _draw(
    logits, rows, counts, tokens, VOCABULARY: tl.constexpr, LOADED: tl.constexpr,
    WALKED: tl.constexpr,
):  # fmt: skip
    """One row's token; -1 where its logits are not finite."""
    row = tl.program_id(0)
    rows += 6 * row
    temperature = tl.load(rows + 1).to(tl.float32)
    if temperature == 0.0:
        return
    counts += row * _STRIDE
    logits += row * VOCABULARY
    first = _RANKS - tl.load(counts + _RANKS)
    token = tl.full((), -1, tl.int32)
    if (first > _POSITIVE_INFINITY) & (first < _NEGATIVE_INFINITY):
        number, share, filters = tl.load(rows), tl.load(rows + 3), tl.load(rows + 5)
        top_k, min_p = tl.load(rows + 2).to(tl.int32), tl.load(rows + 4).to(tl.float32)
        best = _value(first)
        mass = tl.full((), 0.0, tl.float64)
        if (filters == 0.0) | (share < float("inf")):
            mass = _mass(counts, first, best, temperature, top_k, WALKED)
        if filters == 0.0:
            # The same weights were added in another order: never beyond their end.
            aim = tl.minimum(number, 1.0 - 1e-12) * mass
            token = _by_id(logits, aim, best, temperature, VOCABULARY, LOADED)
        else:
            limit = share
            if share < float("inf"):
                limit = tl.maximum(share * mass, 1e-300)  # the likeliest is always kept
            rank, nth = _drawn_rank(
                counts, first, best, number, temperature, top_k, limit, min_p, WALKED
            )
            token = _nth_of_rank(logits, rank, nth, VOCABULARY, LOADED)
    tl.store(tokens + row, token)


class TokenSampling:
    """Sampling for up to `rows` rows, `usual` or fewer in most calls; its buffers do not move."""

    def __init__(self, rows: int, usual: int, vocabulary: int, device: str = "cuda") -> None:
        self._vocabulary = vocabulary
        shape = min(usual, _ROWS), _STRIDE.value
        self._counts = torch.zeros(shape, dtype=torch.int32, device=device)
        self.tokens = torch.zeros(rows, dtype=torch.int64, device=device)

    def launch(self, logits: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        """logits [rows, vocabulary] bf16, rows [rows, WORDS] fp64; tokens [rows] int64, where a
        row that is not used has what it had before."""
        assert logits.dtype == torch.bfloat16, "values are counted by their 16 bits"
        bits = logits.contiguous().view(torch.int16)
        # The interpreter takes as long for a few numbers as for many.
        counted, walked = (_COUNTED, _WALKED) if logits.is_cuda else (_LOADED, 4 * _WALKED)
        blocks = triton.cdiv(self._vocabulary, counted)
        most = len(self._counts)
        for start in range(0, len(logits), most):
            part, mine = bits[start : start + most], rows[start : start + most]
            self._counts.zero_()
            _count[(len(part), blocks)](
                part, mine, self._counts, VOCABULARY=self._vocabulary, BLOCK=counted
            )
            _draw[(len(part),)](
                part, mine, self._counts, self.tokens[start:], VOCABULARY=self._vocabulary,
                LOADED=_LOADED, WALKED=walked, num_warps=16,
            )  # fmt: skip
        return self.tokens[: len(logits)]
