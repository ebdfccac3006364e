"""Attention in a captured decode step, of both kinds."""

from __future__ import annotations

import torch

from moesaic.kernels.gpu.attention import CachedTokens, DecodeAttention, HeadShape
from moesaic.kernels.gpu.latent_attention import LatentDecodeAttention
from moesaic.machines.captured.attention_parts import (
    ABSORBED,
    EXPANDED,
    ONE_TOKENS_THREADS,
    TURN_THREADS,
)
from moesaic.machines.captured.one_matrix import is_one_matrix, one_matrix
from moesaic.machines.captured.residual_stream import ResidualStream
from moesaic.machines.captured.step_inputs import StepInputs
from moesaic.machines.captured.step_parts import StepParts
from moesaic.model_info.network import (
    AttentionSpec,
    GroupedAttentionSpec,
    LatentAttentionSpec,
)
from moesaic.models.attentions.attention import Attention
from moesaic.models.attentions.grouped_attention import GroupedAttention
from moesaic.models.attentions.latent_attention import LatentAttention

Norms = tuple[torch.Tensor | None, torch.Tensor | None]


class GroupedStepAttention:
    """Norm, projections, rotation, cache and attention of the layers with a grouped attention."""

    def __init__(self, parts: StepParts, inputs: StepInputs, spec: GroupedAttentionSpec) -> None:
        self._parts, self._inputs, self._spec = parts, inputs, spec
        self._own = parts.attentions[spec]
        assert not spec.rope.interleaved, "halves of a head are turned"
        self._none_active = torch.zeros_like(inputs.active)  # kernels read it before they wait
        self._make_kernel()

    def _make_kernel(self) -> None:
        parts, spec = self._parts, self._spec
        eps = 0.0 if spec.qk_norm is None else spec.qk_norm.eps  # read with norms only
        shape = HeadShape(*self._heads, spec.rope.dim, eps, spec.scale)
        self._attention = DecodeAttention(
            self._inputs.tokens, shape, parts.cache.blocks_of_slot, self._own.turn_pairs
        )

    @property
    def _heads(self) -> tuple[int, int, int]:
        """Of queries and of keys, and their width."""
        return self._spec.heads, self._spec.kv_heads, self._spec.head_dim

    def prepare(self) -> None:
        """Compile the kernels: no token is real."""
        heads, kv_heads, width = self._heads
        qkv = torch.zeros(
            self._inputs.tokens, (heads + 2 * kv_heads) * width, dtype=torch.bfloat16, device="cuda"
        )
        number = self._own.first
        first = self._parts.decoder.layers[number].attention
        assert isinstance(first, GroupedAttention), "as the network says"
        self._attend(number, qkv, self._norms(first), self._none_active)

    def _attend(
        self, number: int, qkv: torch.Tensor, norms: Norms, active: torch.Tensor
    ) -> torch.Tensor:
        """What the heads of a layer mix; its tokens' keys and values are in the cache then."""
        inputs, cache = self._inputs, self._parts.cache
        keys, values = cache.of(number)
        table = cache.device_table
        cached = CachedTokens(keys, values, table, inputs.slots, inputs.positions, active)
        return self._attention.launch(qkv, norms, cached)

    def launch(
        self, residual: ResidualStream, number: int, attention: Attention, norm: torch.Tensor
    ) -> None:
        assert isinstance(attention, GroupedAttention), "as the network says"
        qkv = self._projected(residual, attention, norm)
        mixed = self._attend(number, qkv, self._norms(attention), self._inputs.active)
        residual.add_product(attention.output, mixed)

    def _projected(
        self, residual: ResidualStream, attention: GroupedAttention, norm: torch.Tensor
    ) -> torch.Tensor:
        """Queries, keys and values in one array."""
        if _normed_when_projected(attention):
            parts = attention.projected(residual.normed(norm))
            return torch.cat([part.flatten(1) for part in parts], dim=1)
        linears = (attention.query, attention.key, attention.value)
        return residual.normed_product(norm, one_matrix(linears), each=2)

    def _norms(self, attention: GroupedAttention) -> Norms:
        """Of queries and keys, where they are left to apply."""
        of = (attention.query_norm, attention.key_norm)
        left = not _normed_when_projected(attention)
        query, key = (each.weight if left and each is not None else None for each in of)
        return query, key


def _normed_when_projected(attention: GroupedAttention) -> bool:
    norm = attention.spec.qk_norm
    return attention.spec.clip is not None or (norm is not None and norm.scope == "projection")


class LatentStepAttention:
    """The same of latent layers. Of one token, kernels multiply with the expansions of keys and
    values; of more, PyTorch."""

    def __init__(self, parts: StepParts, inputs: StepInputs, spec: LatentAttentionSpec) -> None:
        self._parts, self._inputs = parts, inputs
        self._heads, self._spec, self._own = spec.heads, spec, parts.attentions[spec]
        width = spec.rope_dim
        place = {"dtype": torch.bfloat16, "device": inputs.positions.device}
        self._turned = torch.zeros(inputs.tokens, self._heads, width, **place)
        one = int(inputs.tokens == 1)
        self._absorbed = torch.zeros(one, self._heads, spec.rank, **place)
        self._values = torch.zeros(one, self._heads * spec.value_dim, **place)
        self._make_kernel()

    def _make_kernel(self) -> None:
        self._attention = LatentDecodeAttention(self._inputs.tokens, *self._sizes)

    @property
    def _sizes(self) -> tuple[int, int, int, int, float]:
        spec, of_slot = self._spec, self._parts.cache.blocks_of_slot
        return spec.heads, spec.rank, spec.rope_dim, of_slot, spec.scale

    def prepare(self) -> None:
        """Compile the kernels: over the first positions, to buffers that are written anew."""
        number = self._own.first
        first = self._parts.decoder.layers[number].attention
        assert isinstance(first, LatentAttention), "as the network says"
        plain, turning = (
            torch.zeros(
                self._inputs.tokens, self._heads, width, dtype=torch.bfloat16, device="cuda"
            )
            for width in (self._spec.plain_dim, self._spec.rope_dim)
        )
        cache = self._parts.cache
        self._attend(first, plain, turning, *cache.of(number))

    def _takes_one(self) -> bool:
        """Whether kernels do everything: of one new token, in a shape that they are cut for."""
        return self._inputs.tokens == 1 and "absorb_one" in self._own.kernels

    def _launch_one(
        self, residual: ResidualStream, number: int, attention: LatentAttention, norm: torch.Tensor
    ) -> None:
        inputs, cache, kernels = self._inputs, self._parts.cache, self._own.kernels
        heads, spec, attend = self._heads, self._spec, self._attention
        query, compressed = self._projected(residual, attention, norm)
        latents, keys = cache.of(number)
        slots, positions = inputs.slots, inputs.positions
        kernels["absorb_one"](
            (heads * (spec.rank // ABSORBED) + 1,), ONE_TOKENS_THREADS, query, compressed,
            attention.latent_norm.weight, self._own.turn_pairs, slots, positions, inputs.active,
            attention.expand, self._absorbed, self._turned, latents, keys, cache.device_table,
            cache.blocks_of_slot, early=True,
        )  # fmt: skip
        attend.launch_pieces(
            self._absorbed, self._turned, latents, keys, cache.device_table, slots, positions
        )
        kernels["expand_one"](
            (heads * spec.value_dim // EXPANDED,), ONE_TOKENS_THREADS, attend.mixed, attend.tops,
            attend.sums, positions, attend.pieces, attend.piece, attention.expand, self._values,
            early=True,
        )  # fmt: skip
        residual.add_product(attention.output, self._values)

    def launch(
        self, residual: ResidualStream, number: int, attention: Attention, norm: torch.Tensor
    ) -> None:
        assert isinstance(attention, LatentAttention), "as the network says"
        if self._takes_one():
            return self._launch_one(residual, number, attention, norm)
        inputs, cache = self._inputs, self._parts.cache
        query, compressed = self._projected(residual, attention, norm)
        latents, keys = cache.of(number)
        self._own.kernels["turn_store"](
            (self._heads + 1, inputs.tokens), TURN_THREADS, query, compressed,
            attention.latent_norm.weight, self._own.turn_pairs, inputs.slots, inputs.positions,
            inputs.active, self._turned, latents, keys, cache.device_table, cache.blocks_of_slot,
            early=True,
        )  # fmt: skip
        plain = query.unflatten(-1, (self._heads, -1))[..., : self._spec.plain_dim]
        mixed = self._attend(attention, plain, self._turned, latents, keys)
        residual.add_product(attention.output, mixed.flatten(1).contiguous())

    def _projected(
        self, residual: ResidualStream, attention: LatentAttention, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, and what is kept of keys and values, neither turned nor normed yet."""
        if self._inputs.tokens > 1 or attention.query.down is not None:
            query, compressed = attention.query.beside(attention.compress, residual.normed(norm))
            return query.contiguous(), compressed.contiguous()
        linears = (attention.query.up, attention.compress)
        if not is_one_matrix(linears):
            query = residual.normed_product(norm, linears[0], each=2)
            return query, residual.normed_product(norm, linears[1])
        both = residual.normed_product(norm, one_matrix(linears), each=2)
        queries = len(linears[0].weight)
        return both[:, :queries], both[:, queries:]

    def _attend(
        self, attention: LatentAttention, plain: torch.Tensor, turning: torch.Tensor,
        latents: torch.Tensor, keys: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """What every head mixes, [tokens, heads, value width]."""
        key_part, value_part = attention.expansions()
        queries = torch.einsum("thd,hdr->thr", plain, key_part).contiguous()
        table, inputs = self._parts.cache.device_table, self._inputs
        mixed = self._attention.launch(
            queries, turning, latents, keys, table, inputs.slots, inputs.positions
        )
        return torch.einsum("thr,hdr->thd", mixed, value_part)


def step_attention(
    parts: StepParts, inputs: StepInputs, spec: AttentionSpec
) -> GroupedStepAttention | LatentStepAttention:
    """For the layers with this attention."""
    if isinstance(spec, GroupedAttentionSpec):
        return GroupedStepAttention(parts, inputs, spec)
    assert isinstance(spec, LatentAttentionSpec), "what graphs compute"
    return LatentStepAttention(parts, inputs, spec)
