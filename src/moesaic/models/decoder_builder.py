"""Puts a decoder together from named tensors: the one place that knows a checkpoint's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.base import ExpertWeights
from moesaic.kernels.reference import pack_matrices
from moesaic.model_info.expert_shape import ExpertShape
from moesaic.model_info.network import (
    AttentionSpec,
    GroupedAttentionSpec,
    LatentAttentionSpec,
    LayerSpec,
    NormSpec,
    RoutedSpec,
)
from moesaic.models.attentions.attention import Attention
from moesaic.models.attentions.grouped_attention import GroupedAttention
from moesaic.models.attentions.latent_attention import LatentAttention, QueryProjection
from moesaic.models.attentions.linear_attention import build_linear_attention
from moesaic.models.checkpoints.joined_rows import query_and_gate
from moesaic.models.checkpoints.tensor_sources import TensorSource
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.families import RUNNABLE
from moesaic.models.configs.moe_names import MoeNames
from moesaic.models.decoder import Decoder, Layer
from moesaic.models.experts.feed_forward import DenseBlock, GatedMlp, MoeBlock
from moesaic.models.experts.fused_router import fused_router
from moesaic.models.experts.router import Router
from moesaic.models.linear import Linear
from moesaic.models.norm import RmsNorm

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer


class DecoderBuilder:
    """`moe_names` says where a decoder layer's routed block is, which differs by file."""

    def __init__(
        self,
        architecture: Architecture,
        source: TensorSource,
        moe_names: Callable[[int], MoeNames],
        kernel: str = "auto",
        dense: DenseRunner | DenseQuantizer | None = None,
    ) -> None:
        """`dense` packs every matrix as it is read; None: they stay as they are."""
        self._architecture, self._kernel, self._dense = architecture, kernel, dense
        self._source = source
        self._moe_names = moe_names

    def build(self) -> Decoder:
        network = self._architecture.network
        embedding = self._source.tensor(
            "model.embed_tokens.weight", network.vocabulary, network.hidden
        )
        layers = [self._layer(number, spec) for number, spec in enumerate(network.layers)]
        norm = self._norm("model.norm", network.norm)
        head = embedding
        if not network.tied_head:
            head = self._source.tensor("lm_head.weight", network.vocabulary, network.hidden)
        # A tied embedding is looked up by rows and multiplied packed: there it is twice.
        output = Linear.made(head, None, self._dense, "head")
        runner = None if self._dense is None else self._dense.runner
        return Decoder(self._architecture, embedding, layers, norm, output, runner)

    def _layer(self, number: int, spec: LayerSpec) -> Layer:
        prefix = f"model.layers.{number}"
        attention = self._attention(number, spec.attention, prefix)
        norm = self._norm(f"{prefix}.post_attention_layernorm", spec.feed_forward_norm)
        block: DenseBlock | MoeBlock
        if isinstance(spec.feed_forward, RoutedSpec):
            block = self._routed_block(number, spec.feed_forward, norm)
        else:
            network = self._network(f"{prefix}.mlp", spec.feed_forward.expert)
            block = DenseBlock(norm, network)
        first = self._norm(f"{prefix}.input_layernorm", spec.attention_norm)
        return Layer(first, attention, block, spec.residual)

    def _attention(self, number: int, spec: AttentionSpec, prefix: str) -> Attention:
        if isinstance(spec, GroupedAttentionSpec):
            return self._grouped_attention(number, spec, f"{prefix}.self_attn")
        if isinstance(spec, LatentAttentionSpec):
            return self._latent_attention(number, spec, f"{prefix}.self_attn")
        family, hidden = self._architecture.spec.family, self._architecture.network.hidden
        name = f"{prefix}.linear_attn"
        split = RUNNABLE[family].split_inputs
        return build_linear_attention(spec, number, name, hidden, split, self._source, self._dense)

    def _grouped_attention(
        self, number: int, spec: GroupedAttentionSpec, prefix: str
    ) -> GroupedAttention:
        hidden, queries, keys = self._hidden, spec.query_width, spec.kv_width
        query, gate = self._query_and_gate(spec, f"{prefix}.q_proj")
        query_norm = key_norm = None
        if spec.qk_norm is not None:
            eps, fp32 = spec.qk_norm.eps, spec.qk_norm.fp32_weight
            widths = (spec.head_dim,) * 2 if spec.qk_norm.scope == "head" else (queries, keys)
            query_norm = self._norm(f"{prefix}.q_norm", NormSpec(widths[0], eps, fp32))
            key_norm = self._norm(f"{prefix}.k_norm", NormSpec(widths[1], eps, fp32))
        sinks = self._source.tensor(f"{prefix}.sinks", spec.heads) if spec.sinks else None
        return GroupedAttention(
            spec=spec,
            layer=number,
            query=query,
            key=self._linear(f"{prefix}.k_proj", keys, hidden, spec.input_bias),
            value=self._linear(f"{prefix}.v_proj", keys, hidden, spec.input_bias),
            output=self._linear(f"{prefix}.o_proj", hidden, queries, spec.output_bias),
            query_norm=query_norm,
            key_norm=key_norm,
            sinks=sinks,
            gate=gate,
        )

    def _query_and_gate(
        self, spec: GroupedAttentionSpec, name: str
    ) -> tuple[Linear, Linear | None]:
        queries = spec.query_width
        if not spec.gate:
            return self._linear(name, queries, self._hidden, spec.input_bias), None
        joined = self._source.tensor(f"{name}.weight", 2 * queries, self._hidden)
        weights = query_and_gate(joined, spec.heads)
        biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
        if spec.input_bias:
            offsets = self._source.tensor(f"{name}.bias", 2 * queries)
            biases = query_and_gate(offsets, spec.heads)
        query, gate = (
            Linear.made(*both, self._dense) for both in zip(weights, biases, strict=True)
        )
        return query, gate

    def _latent_attention(
        self, number: int, spec: LatentAttentionSpec, prefix: str
    ) -> LatentAttention:
        hidden, heads, rank = self._hidden, spec.heads, spec.rank
        expanded, compressed = spec.plain_dim + spec.value_dim, rank + spec.rope_dim
        expand = self._source.tensor(f"{prefix}.kv_b_proj.weight", heads * expanded, rank)
        norm = NormSpec(rank, spec.norm_eps, spec.fp32_norms)
        return LatentAttention(
            spec=spec,
            layer=number,
            query=self._query_projection(spec, prefix),
            compress=self._linear(
                f"{prefix}.kv_a_proj_with_mqa", compressed, hidden, spec.input_bias
            ),
            latent_norm=self._norm(f"{prefix}.kv_a_layernorm", norm),
            expand=expand.view(heads, expanded, rank),
            output=self._linear(f"{prefix}.o_proj", hidden, spec.mixed_width, spec.output_bias),
        )

    def _query_projection(self, spec: LatentAttentionSpec, prefix: str) -> QueryProjection:
        queries, rank = spec.query_width, spec.query_rank
        if rank is None:
            whole = self._linear(f"{prefix}.q_proj", queries, self._hidden, bias=False)
            return QueryProjection(whole)
        norm = NormSpec(rank, spec.norm_eps, spec.fp32_norms)
        return QueryProjection(
            up=self._linear(f"{prefix}.q_b_proj", queries, rank, bias=False),
            down=self._linear(f"{prefix}.q_a_proj", rank, self._hidden, spec.input_bias),
            norm=self._norm(f"{prefix}.q_a_layernorm", norm),
        )

    def _routed_block(self, number: int, spec: RoutedSpec, norm: RmsNorm) -> MoeBlock:
        names = self._moe_names(number)
        shared = gate = None
        if spec.shared is not None:
            family = RUNNABLE[self._architecture.spec.family]
            shared_name = f"{names.block}.{family.shared_name}"
            shared = self._network(shared_name, spec.shared.expert)
            if spec.shared.gate:
                gate = Linear(self._source.tensor(f"{shared_name}_gate.weight", 1, self._hidden))
        router = self._router(names, spec)
        fused = fused_router(spec.number, norm, router, self._kernel)
        return MoeBlock(spec.number, norm, router, shared, gate, fused)

    def _router(self, names: MoeNames, spec: RoutedSpec) -> Router:
        rule, name, experts = spec.router, names.router, spec.experts
        kept = torch.float32 if rule.fp32_weight else None
        # Never packed: routers are read as they are, by torch and by the native code.
        weight = self._source.tensor(f"{name}.weight", experts, self._hidden, dtype=kept)
        offset = self._source.tensor(f"{name}.bias", experts) if rule.logit_bias else None
        bias = None
        if rule.correction_bias:
            # Scores differ by less than bf16 resolves: stays in fp32, as in the stock model.
            correction = f"{name}.e_score_correction_bias"
            shape: tuple[int, ...] = (experts,)
            if names.correction is not None:
                correction, shape = names.correction, (1, experts)
            bias = self._source.tensor(correction, *shape, dtype=torch.float32).view(experts)
        return Router(rule, weight, bias, offset)

    @property
    def _hidden(self) -> int:
        return self._architecture.network.hidden

    def _network(self, prefix: str, shape: ExpertShape) -> GatedMlp:
        wide = (shape.intermediate, shape.hidden)
        weights = ExpertWeights(
            gate=self._source.tensor(f"{prefix}.gate_proj.weight", *wide),
            up=self._source.tensor(f"{prefix}.up_proj.weight", *wide),
            down=self._source.tensor(f"{prefix}.down_proj.weight", *wide[::-1]),
        )
        packed = None if self._dense is None else self._dense.pack_network(shape, weights)
        if packed is not None:
            return GatedMlp(shape, torch.empty(0, device="meta"), packed)
        block = self._source.empty(shape.values)
        pack_matrices(shape, weights, block)
        return GatedMlp(shape, block)

    def _linear(self, name: str, out: int, inputs: int, bias: bool) -> Linear:
        weight = self._source.tensor(f"{name}.weight", out, inputs)
        offset = self._source.tensor(f"{name}.bias", out) if bias else None
        return Linear.made(weight, offset, self._dense)

    def _norm(self, name: str, spec: NormSpec) -> RmsNorm:
        runner = None if self._dense is None else self._dense.runner
        kept = torch.float32 if spec.fp32_weight else None
        weight = self._source.tensor(f"{name}.weight", spec.width, dtype=kept)
        if self._architecture.centred_norms:
            weight = 1 + weight
        return RmsNorm(weight, spec.eps, None if spec.fp32_weight else runner)
