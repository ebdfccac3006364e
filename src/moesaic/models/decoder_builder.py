"""Puts a decoder together from named tensors: the one place that knows a checkpoint's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from moesaic.kernels.base import ExpertShape, ExpertWeights
from moesaic.kernels.reference import pack_matrices
from moesaic.models.architecture import Architecture
from moesaic.models.attention import Attention
from moesaic.models.decoder import Decoder, Layer
from moesaic.models.families import RUNNABLE
from moesaic.models.feed_forward import DenseBlock, GatedMlp, MoeBlock
from moesaic.models.fused_router import fused_router
from moesaic.models.grouped_attention import GroupedAttention
from moesaic.models.joined_rows import query_and_gate
from moesaic.models.latent_attention import LatentAttention, QueryProjection
from moesaic.models.linear import Linear
from moesaic.models.linear_attention_weights import build_linear_attention
from moesaic.models.moe_names import MoeNames
from moesaic.models.norm import RmsNorm
from moesaic.models.router import Router
from moesaic.models.tensor_sources import TensorSource

if TYPE_CHECKING:
    from moesaic.kernels.native_linear import DenseRunner
    from moesaic.kernels.quantized_linear import DenseQuantizer

LATENT_EPS = 1e-6  # of the norms inside latent attention, whatever the config says


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
        spec = self._architecture.spec
        embedding = self._source.tensor(
            "model.embed_tokens.weight", spec.vocab_size, spec.hidden_size
        )
        layers = [self._layer(number) for number in range(spec.num_layers)]
        norm = self._norm("model.norm", spec.hidden_size)
        head = embedding
        if not spec.tied_embeddings:
            head = self._source.tensor("lm_head.weight", spec.vocab_size, spec.hidden_size)
        # A tied embedding is looked up by rows and multiplied packed: there it is twice.
        output = Linear.made(head, None, self._dense, "head")
        runner = None if self._dense is None else self._dense.runner
        return Decoder(self._architecture, embedding, layers, norm, output, runner)

    def _layer(self, number: int) -> Layer:
        spec, prefix = self._architecture.spec, f"model.layers.{number}"
        attention: Attention
        if number in spec.linear_layers:
            name = f"{prefix}.linear_attn"
            made = (self._architecture, number, name, self._source, self._dense)
            attention = build_linear_attention(*made)
        elif spec.latent_attention is None:
            attention = self._grouped_attention(number, f"{prefix}.self_attn")
        else:
            attention = self._latent_attention(number, f"{prefix}.self_attn")
        norm = self._norm(f"{prefix}.post_attention_layernorm", spec.hidden_size)
        block: DenseBlock | MoeBlock
        if number in spec.moe_layers:
            block = self._routed_block(number, norm)
        else:
            network = self._network(f"{prefix}.mlp", self._architecture.dense_shape)
            block = DenseBlock(norm, network)
        return Layer(self._norm(f"{prefix}.input_layernorm", spec.hidden_size), attention, block)

    def _grouped_attention(self, number: int, prefix: str) -> GroupedAttention:
        spec, rule = self._architecture.spec, self._architecture.attention
        hidden, queries = spec.hidden_size, spec.num_heads * spec.head_dim
        keys = spec.num_kv_heads * spec.head_dim
        query, gate = self._query_and_gate(f"{prefix}.q_proj")
        query_norm = key_norm = None
        if rule.qk_norm != "none":
            whole = rule.qk_norm == "projection"
            query_norm = self._norm(f"{prefix}.q_norm", queries if whole else spec.head_dim)
            key_norm = self._norm(f"{prefix}.k_norm", keys if whole else spec.head_dim)
        sinks = None
        if spec.attention_sinks:
            sinks = self._source.tensor(f"{prefix}.sinks", spec.num_heads)
        return GroupedAttention(
            architecture=self._architecture,
            layer=number,
            query=query,
            key=self._linear(f"{prefix}.k_proj", keys, hidden, rule.input_bias),
            value=self._linear(f"{prefix}.v_proj", keys, hidden, rule.input_bias),
            output=self._linear(f"{prefix}.o_proj", hidden, queries, rule.output_bias),
            query_norm=query_norm,
            key_norm=key_norm,
            sinks=sinks,
            gate=gate,
            window=spec.sliding_window if number in spec.window_layers else 0,
        )

    def _query_and_gate(self, name: str) -> tuple[Linear, Linear | None]:
        spec, bias = self._architecture.spec, self._architecture.attention.input_bias
        hidden, queries = spec.hidden_size, spec.num_heads * spec.head_dim
        if not spec.output_gate:
            return self._linear(name, queries, hidden, bias), None
        joined = self._source.tensor(f"{name}.weight", 2 * queries, hidden)
        weights = query_and_gate(joined, spec.num_heads)
        biases: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None)
        if bias:
            offsets = self._source.tensor(f"{name}.bias", 2 * queries)
            biases = query_and_gate(offsets, spec.num_heads)
        query, gate = (
            Linear.made(*both, self._dense) for both in zip(weights, biases, strict=True)
        )
        return query, gate

    def _latent_attention(self, number: int, prefix: str) -> LatentAttention:
        spec, rule = self._architecture.spec, self._architecture.attention
        shape = spec.latent_attention
        assert shape is not None, "the model has latent attention"
        hidden, heads, rank = spec.hidden_size, spec.num_heads, shape.kv_lora_rank
        expanded = shape.qk_nope_head_dim + shape.v_head_dim
        compressed = rank + shape.qk_rope_head_dim
        expand = self._source.tensor(f"{prefix}.kv_b_proj.weight", heads * expanded, rank)
        return LatentAttention(
            architecture=self._architecture,
            shape=shape,
            layer=number,
            query=self._query_projection(prefix, shape.q_lora_rank),
            compress=self._linear(
                f"{prefix}.kv_a_proj_with_mqa", compressed, hidden, rule.input_bias
            ),
            latent_norm=self._norm(f"{prefix}.kv_a_layernorm", rank, LATENT_EPS),
            expand=expand.view(heads, expanded, rank),
            output=self._linear(
                f"{prefix}.o_proj", hidden, heads * shape.v_head_dim, rule.output_bias
            ),
        )

    def _query_projection(self, prefix: str, rank: int | None) -> QueryProjection:
        spec, rule = self._architecture.spec, self._architecture.attention
        hidden, queries = spec.hidden_size, spec.num_heads * spec.head_dim
        if rank is None:
            return QueryProjection(self._linear(f"{prefix}.q_proj", queries, hidden, bias=False))
        return QueryProjection(
            up=self._linear(f"{prefix}.q_b_proj", queries, rank, bias=False),
            down=self._linear(f"{prefix}.q_a_proj", rank, hidden, rule.input_bias),
            norm=self._norm(f"{prefix}.q_a_layernorm", rank, LATENT_EPS),
        )

    def _routed_block(self, number: int, norm: RmsNorm) -> MoeBlock:
        architecture, spec = self._architecture, self._architecture.spec
        names = self._moe_names(number)
        shared_name = f"{names.block}.{RUNNABLE[spec.family].shared_name}"
        shared = gate = None
        if spec.shared_intermediate:
            shared = self._network(shared_name, architecture.shared_shape)
        if architecture.shared_gate:
            name = f"{shared_name}_gate.weight"
            gate = Linear(self._source.tensor(name, 1, spec.hidden_size))
        router = self._router(names)
        layer = spec.moe_layers.index(number)
        fused = fused_router(layer, norm, router, self._kernel)
        return MoeBlock(layer, norm, router, shared, gate, fused)

    def _router(self, names: MoeNames) -> Router:
        spec, rule = self._architecture.spec, self._architecture.router
        name, experts = names.router, spec.num_experts
        kept = torch.float32 if rule.fp32_weight else None
        # Never packed: routers are read as they are, by torch and by the native code.
        weight = self._source.tensor(f"{name}.weight", experts, spec.hidden_size, dtype=kept)
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

    def _norm(self, name: str, width: int, eps: float | None = None) -> RmsNorm:
        eps = self._architecture.norm_eps if eps is None else eps
        runner = None if self._dense is None else self._dense.runner
        if self._architecture.centred_norms:
            centred = self._source.tensor(f"{name}.weight", width, dtype=torch.float32)
            return RmsNorm(1 + centred, eps)
        return RmsNorm(self._source.tensor(f"{name}.weight", width), eps, runner)
