"""A step that reads pieces of prompts, beside sequences that decode: its launches, for a fixed
number of rows. As `decode_step.py`, but several rows may belong to one sequence, and few have
logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from moesaic.kernels.gpu.latent_prompt_attention import LatentPromptAttention
from moesaic.kernels.gpu.prompt_attention import PromptAttention, most_tiles, tiles_of
from moesaic.machines.captured.decode_step import DecodeStep
from moesaic.machines.captured.step_attention import (
    GroupedStepAttention,
    LatentStepAttention,
    Norms,
)
from moesaic.machines.captured.step_inputs import StepInputs
from moesaic.machines.captured.step_parts import Replayed, StepParts
from moesaic.machines.real.forward_pass import ForwardPass
from moesaic.model_info.network import (
    AttentionSpec,
    GroupedAttentionSpec,
    LatentAttentionSpec,
)
from moesaic.models.attentions.latent_attention import LatentAttention

_TILE = 4  # words


@dataclass(frozen=True, slots=True)
class Tiles:
    """Tiles of attention, then the rows whose logits are wanted; `host` is pinned and written
    before a launch, `device` is its copy."""

    host: torch.Tensor
    device: torch.Tensor
    most: int  # tiles

    @classmethod
    def of(cls, rows: int, sequences: int, wanted: int) -> Tiles:
        most = most_tiles(rows, sequences)
        host = torch.zeros(_TILE * most + wanted, dtype=torch.int64, pin_memory=True)
        return cls(host, torch.zeros_like(host, device="cuda"), most)

    def write(self, work: ForwardPass) -> None:
        self.host.zero_()
        tiles = torch.tensor(
            tiles_of((each.slot, each.first, len(each.tokens)) for each in work.pieces)
        )
        self.host[: tiles.numel()] = tiles.flatten()
        start = _TILE * self.most
        self.host[start : start + len(work.wanted)] = torch.tensor(work.wanted)

    @property
    def tiles(self) -> torch.Tensor:
        return self.device[: _TILE * self.most].view(-1, _TILE)

    @property
    def wanted(self) -> torch.Tensor:
        return self.device[_TILE * self.most :]


class GroupedPromptStepAttention(GroupedStepAttention):
    def __init__(
        self, parts: StepParts, inputs: StepInputs, spec: GroupedAttentionSpec, tiles: Tiles
    ) -> None:
        self._tiles_of = tiles
        super().__init__(parts, inputs, spec)

    def _make_kernel(self) -> None:
        heads, kv_heads, width = self._heads
        parts, tokens = self._parts, self._inputs.tokens
        of_slot, scale = parts.cache.blocks_of_slot, self._spec.scale
        self._tiled = PromptAttention(tokens, heads, kv_heads, width, of_slot, scale)
        self._queries = torch.zeros(tokens, heads * width, dtype=torch.bfloat16, device="cuda")

    def _attend(
        self, number: int, qkv: torch.Tensor, norms: Norms, active: torch.Tensor
    ) -> torch.Tensor:
        inputs, cache = self._inputs, self._parts.cache
        heads, kv_heads, width = self._heads
        keys, values = cache.of(number)
        self._own.kernels["rotate_store"](
            (heads + 2 * kv_heads, inputs.tokens), width, qkv,
            *(0 if norm is None else norm for norm in norms), self._own.turn_pairs,
            inputs.slots, inputs.positions, active, self._queries, keys, values,
            cache.device_table, cache.blocks_of_slot, early=True,
        )  # fmt: skip
        return self._tiled.launch(
            self._queries, keys, values, cache.device_table, self._tiles_of.tiles
        )


class LatentPromptStepAttention(LatentStepAttention):
    """Queries and results lie head by head: as the products around attention, one for every head,
    make and read them."""

    def __init__(
        self, parts: StepParts, inputs: StepInputs, spec: LatentAttentionSpec, tiles: Tiles
    ) -> None:
        self._tiles_of = tiles
        super().__init__(parts, inputs, spec)

    def _make_kernel(self) -> None:
        self._prompt_attention = LatentPromptAttention(*self._sizes)
        self._queries, self._mixed = self._own.latent_prompts(self._inputs.tokens)

    def _attend(
        self, attention: LatentAttention, plain: torch.Tensor, turning: torch.Tensor,
        latents: torch.Tensor, keys: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        key_part, value_part = attention.expansions()
        queries = torch.bmm(plain.transpose(0, 1), key_part, out=self._queries)
        tiles, table = self._tiles_of.tiles, self._parts.cache.device_table
        mixed = self._prompt_attention.launch(
            queries, turning, latents, keys, table, tiles, self._mixed
        )
        return torch.bmm(mixed, value_part.transpose(1, 2)).transpose(0, 1)


class PromptStep(DecodeStep):
    """`rows` tokens, of which up to `wanted` have logits. Experts that are there are computed while
    others arrive."""

    def __init__(
        self, parts: StepParts, rows: int, wanted: int, replayed: Replayed | None = None,
        gated: bool = True,
    ) -> None:  # fmt: skip
        assert rows > 1, "a single row is decoded"
        self.tiles = Tiles.of(rows, parts.cache.slots, wanted)
        super().__init__(parts, rows, replayed, wanted, gated)

    def write(self, work: ForwardPass, counts: Sequence[int] | None = None) -> None:
        """What the next launch computes."""
        self.inputs.write(work.numbers, work.slots, work.positions, counts)
        self.tiles.write(work)

    def _attention(self, spec: AttentionSpec) -> GroupedStepAttention | LatentStepAttention:
        if isinstance(spec, GroupedAttentionSpec):
            return GroupedPromptStepAttention(self._parts, self.inputs, spec, self.tiles)
        assert isinstance(spec, LatentAttentionSpec), "what graphs compute"
        return LatentPromptStepAttention(self._parts, self.inputs, spec, self.tiles)

    def _fetch_inputs(self) -> None:
        super()._fetch_inputs()
        self.fetch(self.tiles.host, self.tiles.device)

    def _compute(self, x: torch.Tensor, layer: int) -> None:
        there = self._stamps.at(layer, "there")
        self._experts.launch_in_turn(self._table, x, lambda: self._stamp(there))

    def _head(self) -> torch.Tensor:
        rows = self.residual.normed(self._decoder.norm.weight).index_select(0, self.tiles.wanted)
        return self._decoder.output(rows)
