"""Multi-head latent attention (DeepSeek-V2): the cache keeps one compressed vector per token.

Two orders of the same products. Many new tokens: keys and values of all heads are expanded from
the latents, as the stock model does. Few (decoding): the expansion is applied to the queries and
to the result instead, so that the cost does not grow with context x heads x rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from moesaic.kernels.attended import Attended, Scores
from moesaic.kernels.products import linear
from moesaic.model_info.network import LatentAttentionSpec
from moesaic.models.attentions.attention import attend_shared
from moesaic.models.attentions.rope import Rotation, rotate
from moesaic.models.attentions.sequence_attention import attend_sequences
from moesaic.models.linear import Linear, together
from moesaic.models.norm import RmsNorm
from moesaic.models.token_batch import RowSpan, TokenBatch


@dataclass(frozen=True, slots=True)
class QueryProjection:
    """Straight, or through a normalised bottleneck."""

    up: Linear
    down: Linear | None = None
    norm: RmsNorm | None = None

    def beside(self, other: Linear, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Queries, and another projection of the same inputs."""
        first, second = together((self.up if self.down is None else self.down, other), x)
        if self.down is None or self.norm is None:
            return first, second
        return self.up(self.norm(first)), second


@dataclass(frozen=True, slots=True)
class LatentAttention:
    spec: LatentAttentionSpec
    layer: int
    query: QueryProjection
    compress: Linear  # to the latent and the one rotary key all heads share
    latent_norm: RmsNorm
    expand: torch.Tensor  # [heads, plain key + value, rank]
    output: Linear

    def __call__(self, x: torch.Tensor, step: TokenBatch) -> torch.Tensor:
        plain, turning, latent, key = self.projected(x, step.turns[self.spec.rope])
        for rows in (plain, turning):
            step.watch_last(rows)
        for rows in (latent, key):
            step.watch(rows)
        mixed = [self._of_sequence(plain, turning, latent, key, step, span) for span in step.spans]
        return self.output((mixed[0] if len(mixed) == 1 else torch.cat(mixed)).flatten(1))

    def projected(
        self, x: torch.Tensor, turn: Rotation
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [tokens, heads, width], their plain and their rotary parts; latents and rotary
        keys [tokens, width]."""
        rope, spec = self.spec.rope, self.spec
        query, compressed = self.query.beside(self.compress, x)
        query = query.unflatten(-1, (spec.heads, -1))
        plain, turning = query.split((spec.plain_dim, spec.rope_dim), dim=-1)
        turning = rotate(rope, turning, turn)
        latent, key = compressed.split((spec.rank, spec.rope_dim), dim=-1)
        latent = self.latent_norm(latent)
        return plain, turning, latent, rotate(rope, key[:, None], turn)[:, 0]

    def _of_sequence(
        self,
        plain: torch.Tensor,
        turning: torch.Tensor,
        latent: torch.Tensor,
        key: torch.Tensor,
        step: TokenBatch,
        span: RowSpan,
    ) -> torch.Tensor:
        """[new, heads, value width]"""
        rows = span.rows
        latents, keys = step.cache.extend(self.layer, span.slot, latent[rows], key[rows])
        attend_to = self.absorbed if self._is_short(len(latent[rows])) else self.expanded
        return attend_to(plain[rows], turning[rows], latents, keys)

    def _is_short(self, new: int) -> bool:
        """Whether absorbing costs fewer multiplications, per head and cached token."""
        spec = self.spec
        plain, value = spec.plain_dim, spec.value_dim
        absorbed = new * (2 * spec.rank + spec.rope_dim)
        attended = new * (plain + spec.rope_dim + value)
        return absorbed < spec.rank * (plain + value) + attended

    def expanded(
        self,
        plain: torch.Tensor,
        turning: torch.Tensor,
        latents: torch.Tensor,
        keys: torch.Tensor,
    ) -> torch.Tensor:
        heads = self.expand.shape[0]
        full = linear(latents, self.expand.flatten(0, 1))
        plain_keys, values = full.unflatten(-1, (heads, -1)).split(
            (self.spec.plain_dim, self.spec.value_dim), dim=-1
        )
        shared = keys[:, None].expand(-1, heads, -1)
        query, key = torch.cat((plain, turning), -1), torch.cat((plain_keys, shared), -1)
        packed = self.output.native
        native = None if packed is None else packed.runner.attention
        attended = Attended(slice(0, len(query)), key, values)
        scores = Scores(self.spec.scale)
        return attend_sequences(query, [attended], scores, native)

    def expansions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The products from latents to plain keys and to values, [heads, width, rank]."""
        key, value = self.expand.split((self.spec.plain_dim, self.spec.value_dim), dim=1)
        return key, value

    def absorbed(
        self,
        plain: torch.Tensor,
        turning: torch.Tensor,
        latents: torch.Tensor,
        keys: torch.Tensor,
    ) -> torch.Tensor:
        """All heads read the same latents."""
        key_part, value_part = self.expansions()
        query = torch.cat((torch.einsum("thd,hdr->thr", plain, key_part), turning), -1)
        mixed = attend_shared(query, torch.cat((latents, keys), -1), latents, self.spec.scale)
        return torch.einsum("thr,hdr->thd", mixed, value_part)
