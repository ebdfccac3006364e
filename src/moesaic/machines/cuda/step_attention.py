"""Attention in a captured decode step, of both kinds."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.gpu.attention import DecodeAttention
from moesaic.kernels.gpu.latent_attention import LatentDecodeAttention
from moesaic.kernels.gpu.prompt_attention import PromptAttention
from moesaic.machines.cuda.dense_products import quantized
from moesaic.machines.cuda.step_parts import (
    ABSORBED,
    EXPANDED,
    ONE_TOKENS_THREADS,
    TURN_THREADS,
    StepParts,
)
from moesaic.models.grouped_attention import GroupedAttention
from moesaic.models.latent_attention import LatentAttention
from moesaic.models.linear import Linear

if TYPE_CHECKING:
    from moesaic.machines.cuda.decode_step import DecodeStep
    from moesaic.machines.cuda.step_inputs import StepInputs


class GroupedStepAttention:
    """Norm, projections, rotation, cache and attention of grouped-query layers."""

    def __init__(self, parts: StepParts, inputs: StepInputs) -> None:
        spec = parts.decoder.architecture.spec
        self._parts, self._inputs, self._spec = parts, inputs, spec
        self._queries = torch.zeros(
            inputs.tokens, spec.num_heads * spec.head_dim, dtype=torch.bfloat16, device="cuda"
        )
        self._attention = self._make_kernel()

    def _make_kernel(self) -> DecodeAttention | PromptAttention:
        return DecodeAttention(*self._sizes)

    @property
    def _sizes(self) -> tuple[int, int, int, int, int, float]:
        spec, parts = self._spec, self._parts
        return (
            self._inputs.tokens, spec.num_heads, spec.num_kv_heads, spec.head_dim,
            parts.cache.max_length, parts.decoder.architecture.attention.scale,
        )  # fmt: skip

    def prepare(self) -> None:
        """Compile the kernels: over the first positions, to buffers that are written anew."""
        self._attend(self._parts.cache.first[0], self._parts.cache.second[0])

    def _attend(self, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        assert isinstance(self._attention, DecodeAttention), "one new token per sequence"
        slots, positions = self._inputs.slots, self._inputs.positions
        return self._attention.launch(self._queries, keys, values, slots, positions)

    def launch(
        self, step: DecodeStep, number: int, attention: GroupedAttention, norm: torch.Tensor
    ) -> None:
        spec, inputs, cache = self._spec, self._inputs, self._parts.cache
        kernels = self._parts.kernels
        qkv, norms = self._projected(step, attention, norm)
        keys, values = cache.first[number], cache.second[number]
        heads = spec.num_heads + 2 * spec.num_kv_heads
        kernels["rotate_store"](
            (heads, inputs.tokens), spec.head_dim, qkv, *norms, self._parts.turn_pairs,
            inputs.slots, inputs.positions, inputs.active, self._queries, keys, values,
            cache.max_length, early=True,
        )  # fmt: skip
        mixed = self._attend(keys, values)
        step.add_product(attention.output, mixed)

    def _projected(
        self, step: DecodeStep, attention: GroupedAttention, norm: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor | int]]:
        """Queries, keys and values in one array, and the norms that are left to apply."""
        rule = attention.architecture.attention
        if rule.qk_norm == "projection" or rule.clip is not None:
            parts = attention.projected(step.normed(norm))
            return torch.cat([part.flatten(1) for part in parts], dim=1), [0, 0]
        of = (attention.query_norm, attention.key_norm)
        norms: list[torch.Tensor | int] = [0 if n is None else n.weight for n in of]
        return step.normed_product(norm, together(attention), each=2), norms


class LatentStepAttention:
    """The same of latent layers. Of one token, kernels multiply with the expansions of keys and
    values; of more, PyTorch."""

    def __init__(self, parts: StepParts, inputs: StepInputs) -> None:
        self._parts, self._inputs = parts, inputs
        spec = parts.decoder.architecture.spec
        assert spec.latent_attention is not None, "a model with latent attention"
        self._heads, self._shape = spec.num_heads, spec.latent_attention
        width = self._shape.qk_rope_head_dim
        place = {"dtype": torch.bfloat16, "device": inputs.positions.device}
        self._turned = torch.zeros(inputs.tokens, self._heads, width, **place)
        one = int(inputs.tokens == 1)
        self._absorbed = torch.zeros(one, self._heads, self._shape.kv_lora_rank, **place)
        self._values = torch.zeros(one, self._heads * self._shape.v_head_dim, **place)
        self._make_kernel()

    def _make_kernel(self) -> None:
        self._attention = LatentDecodeAttention(self._inputs.tokens, *self._sizes)

    @property
    def _sizes(self) -> tuple[int, int, int, int, float]:
        shape, scale = self._shape, self._parts.decoder.architecture.attention.scale
        length = self._parts.cache.max_length
        return self._heads, shape.kv_lora_rank, shape.qk_rope_head_dim, length, scale

    def prepare(self) -> None:
        """Compile the kernels: over the first positions, to buffers that are written anew."""
        first = self._parts.decoder.layers[0].attention
        assert isinstance(first, LatentAttention), "one kind of attention in a model"
        plain, turning = (
            torch.zeros(
                self._inputs.tokens, self._heads, width, dtype=torch.bfloat16, device="cuda"
            )
            for width in (self._shape.qk_nope_head_dim, self._shape.qk_rope_head_dim)
        )
        cache = self._parts.cache
        self._attend(first, plain, turning, cache.first[0], cache.second[0])

    def _takes_one(self) -> bool:
        """Whether kernels do everything: of one new token, in a shape that they are cut for."""
        return self._inputs.tokens == 1 and "absorb_one" in self._parts.kernels

    def _launch_one(
        self, step: DecodeStep, number: int, attention: LatentAttention, norm: torch.Tensor
    ) -> None:
        inputs, cache, kernels = self._inputs, self._parts.cache, self._parts.kernels
        heads, shape, attend = self._heads, self._shape, self._attention
        query, compressed = self._projected(step, attention, norm)
        latents, keys = cache.first[number], cache.second[number]
        slots, positions = inputs.slots, inputs.positions
        kernels["absorb_one"](
            (heads * (shape.kv_lora_rank // ABSORBED) + 1,), ONE_TOKENS_THREADS, query, compressed,
            attention.latent_norm.weight, self._parts.turn_pairs, slots, positions, inputs.active,
            attention.expand, self._absorbed, self._turned, latents, keys, cache.max_length,
            early=True,
        )  # fmt: skip
        attend.launch_pieces(self._absorbed, self._turned, latents, keys, slots, positions)
        kernels["expand_one"](
            (heads * shape.v_head_dim // EXPANDED,), ONE_TOKENS_THREADS, attend.mixed, attend.tops,
            attend.sums, positions, attend.pieces, attend.piece, attention.expand, self._values,
            early=True,
        )  # fmt: skip
        step.add_product(attention.output, self._values)

    def launch(
        self, step: DecodeStep, number: int, attention: LatentAttention, norm: torch.Tensor
    ) -> None:
        if self._takes_one():
            return self._launch_one(step, number, attention, norm)
        inputs, cache, shape = self._inputs, self._parts.cache, self._shape
        query, compressed = self._projected(step, attention, norm)
        latents, keys = cache.first[number], cache.second[number]
        self._parts.kernels["turn_store"](
            (self._heads + 1, inputs.tokens), TURN_THREADS, query, compressed,
            attention.latent_norm.weight, self._parts.turn_pairs, inputs.slots, inputs.positions,
            inputs.active, self._turned, latents, keys, cache.max_length, early=True,
        )  # fmt: skip
        plain = query.unflatten(-1, (self._heads, -1))[..., : shape.qk_nope_head_dim]
        mixed = self._attend(attention, plain, self._turned, latents, keys)
        step.add_product(attention.output, mixed.flatten(1).contiguous())

    def _projected(
        self, step: DecodeStep, attention: LatentAttention, norm: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, and what is kept of keys and values, neither turned nor normed yet."""
        if self._inputs.tokens > 1 or attention.query.down is not None:
            query, compressed = attention.query.beside(attention.compress, step.normed(norm))
            return query.contiguous(), compressed.contiguous()
        query = step.normed_product(norm, attention.query.up, each=2)
        return query, step.normed_product(norm, attention.compress)

    def _attend(
        self, attention: LatentAttention, plain: torch.Tensor, turning: torch.Tensor,
        latents: torch.Tensor, keys: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        """What every head mixes, [tokens, heads, value width]."""
        key_part, value_part = attention.expansions()
        queries = torch.einsum("thd,hdr->thr", plain, key_part).contiguous()
        slots, positions = self._inputs.slots, self._inputs.positions
        mixed = self._attention.launch(queries, turning, latents, keys, slots, positions)
        return torch.einsum("thr,hdr->thd", mixed, value_part)


def together(attention: GroupedAttention) -> Linear:
    """Queries, keys and values as one product: `models/placed.py` has laid them side by side."""
    linears = (attention.query, attention.key, attention.value)
    biases = [each.bias for each in linears if each.bias is not None]
    bias = _joined(biases) if biases else None
    if attention.query.packed is None:
        return Linear(_joined([each.weight for each in linears]), bias)
    packed = [quantized(each) for each in linears]
    whole = replace(
        packed[0],
        codes=_joined([each.codes for each in packed]),
        scales=_joined([each.scales for each in packed]),
    )
    return Linear(attention.query.weight, bias, whole)


def _joined(parts: list[torch.Tensor]) -> torch.Tensor:
    """A view: kernels read it before what is in front of them has ended."""
    first, end = parts[0], parts[0].data_ptr()
    for part in parts:
        assert part.is_contiguous(), "weights as they were laid"
        assert part.data_ptr() == end, "one behind the other in memory"
        end += part.nbytes
    rows = sum(len(part) for part in parts)
    return first.as_strided((rows, *first.shape[1:]), first.stride())
