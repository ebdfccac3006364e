"""What captured steps of all sizes share of one kind of attention: kernels compiled for its sizes,
cosines and sines."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from moesaic.kernels.gpu.driver import Function
from moesaic.kernels.gpu.modules import load_module
from moesaic.machines.captured.latent_buffers import LatentBuffers
from moesaic.model_info.network import AttentionSpec, GroupedAttentionSpec, LatentAttentionSpec
from moesaic.models.attentions.rope import rotation

if TYPE_CHECKING:
    from moesaic.models.decoder import Decoder

TURN_THREADS = 128  # of `turn_store`
ONE_TOKENS_THREADS = 256  # of `absorb_one` and `expand_one`
ABSORBED, EXPANDED = 64, 16  # values that a block of each computes
Defines = dict[str, int | float]


class AttentionParts:
    """`defines` are the macros of the network's module, which has a kernel of grouped attention;
    `rows` the tokens of the longest step, `length` the positions of the cache."""

    def __init__(
        self, decoder: Decoder, spec: AttentionSpec, defines: Defines, rows: int, length: int
    ) -> None:
        self.spec, self._rows = spec, rows
        self.first = first_layer(decoder, spec)
        assert isinstance(spec, GroupedAttentionSpec | LatentAttentionSpec), "what graphs compute"
        positions = torch.arange(length, device=decoder.device)
        turns = rotation(spec.rope, decoder.frequencies[spec.rope], positions)
        self.turn_pairs = torch.cat((turns.cos, turns.sin), dim=1).contiguous()
        self._latent: LatentBuffers | None = None  # until a prompt comes
        if isinstance(spec, GroupedAttentionSpec):
            names, module = ["rotate_store"], load_module("network", defines)
        else:
            macros = latent_defines(spec)
            names = ["turn_store"]
            names += ["absorb_one", "expand_one"] * ("VALUE_WIDTH" in macros)
            module = load_module("latent", macros)
        self.kernels: dict[str, Function] = {name: module.function(name) for name in names}

    def latent_prompts(self, tokens: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries and results of a prompt's latent attention; all steps share them."""
        if self._latent is None:
            assert isinstance(self.spec, LatentAttentionSpec), "a layer with latent attention"
            self._latent = LatentBuffers(self._rows, self.spec.heads, self.spec.rank)
        return self._latent.of(tokens)


def first_layer(decoder: Decoder, spec: AttentionSpec) -> int:
    """The number of the first layer with this attention."""
    return [layer.attention for layer in decoder.architecture.network.layers].index(spec)


def grouped_defines(spec: AttentionSpec) -> Defines:
    """Macros of `source/network.cu` for a kind of attention."""
    if not isinstance(spec, GroupedAttentionSpec):
        return {}
    return {
        "HEADS": spec.heads, "KV_HEADS": spec.kv_heads, "HEAD_DIM": spec.head_dim,
        "ROPE_DIM": spec.rope.dim,
    }  # fmt: skip


def latent_defines(spec: LatentAttentionSpec) -> Defines:
    """Macros of `source/latent.cu`."""
    defines: Defines = {
        "HEADS": spec.heads, "RANK": spec.rank, "ROPE_DIM": spec.rope_dim,
        "HEAD_WIDTH": spec.plain_dim + spec.rope_dim,
        "LATENT_EPS": spec.norm_eps, "INTERLEAVED": int(spec.rope.interleaved),
    }  # fmt: skip
    if spec.rank % ABSORBED == 0 and spec.value_dim % EXPANDED == 0:
        defines["VALUE_WIDTH"] = spec.value_dim
    return defines
