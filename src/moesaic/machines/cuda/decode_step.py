"""One decode step's launches, for a fixed number of tokens: tokens in, logits out.

Everything is at a fixed address and nothing depends on values Python sees, so the launches can be
captured once and replayed. At every MoE layer the GPU leaves hidden states and routing in the
mailbox, rings, and waits for the conductor's table and for the CPU's sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.nn import functional

from moesaic.kernels.gpu.attention import DecodeAttention
from moesaic.kernels.gpu.driver import Module, architecture, wait_value, write_value
from moesaic.kernels.gpu.experts import GpuExperts
from moesaic.kernels.gpu.nvrtc import compile_source
from moesaic.kernels.reference import feed_forward
from moesaic.machines.cuda.kv_cache import StaticCache
from moesaic.machines.cuda.mailbox import Mailbox
from moesaic.models.decoder import Decoder
from moesaic.models.feed_forward import DenseBlock, RoutedBlock
from moesaic.models.grouped_attention import GroupedAttention
from moesaic.models.rope import rotation

_THREADS = 256  # of kernels that have a token per block


class Replayed(NamedTuple):
    """Another's choices for the current step: experts [layers, tokens, ranks], their scores, and
    the weights of the first top-k of them."""

    ranked: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor


@dataclass(frozen=True, slots=True)
class StepInputs:
    """Of every token in turn: its number, its slot and its position; then how many tokens there
    are. `host` is pinned and written before a launch, `device` is its copy."""

    host: torch.Tensor
    device: torch.Tensor
    tokens: int

    @classmethod
    def of(cls, tokens: int) -> StepInputs:
        host = torch.zeros(3 * tokens + 1, dtype=torch.int64, pin_memory=True)
        return cls(host, torch.zeros_like(host, device="cuda"), tokens)

    def part(self, number: int) -> torch.Tensor:
        return self.device[number * self.tokens : (number + 1) * self.tokens]

    @property
    def active(self) -> torch.Tensor:
        return self.device[3 * self.tokens :]


class DecodeStep:
    """`tokens` is the batch size, the mailbox's too; a smaller batch leaves rows unused."""

    def __init__(
        self,
        decoder: Decoder,
        cache: StaticCache,
        mailbox: Mailbox,
        expert_dtype: str,
        replayed: Replayed | None = None,
    ) -> None:
        spec, rope = decoder.architecture.spec, decoder.architecture.rope
        tokens = mailbox.shape.tokens
        self._decoder, self._cache, self._mailbox = decoder, cache, mailbox
        self._replayed = replayed
        self.inputs = StepInputs.of(tokens)
        self._experts = GpuExperts(
            decoder.architecture.expert_shape, expert_dtype, tokens, spec.top_k, spec.num_experts
        )
        self._table = torch.zeros_like(mailbox["table"], device="cuda")
        like = {"dtype": decoder.dtype, "device": "cuda"}
        self._stream = torch.zeros(tokens, spec.hidden_size, **like)  # type: ignore[call-overload]
        self._x = torch.zeros_like(self._stream)
        self._queries = torch.zeros(tokens, spec.num_heads * spec.head_dim, **like)  # type: ignore[call-overload]
        positions = torch.arange(cache.max_length, device="cuda")
        turns = rotation(rope, decoder.frequencies, positions)
        self._turns = torch.cat((turns.cos, turns.sin), dim=1).contiguous()
        self._attention = DecodeAttention(
            tokens, spec.num_heads, spec.num_kv_heads, spec.head_dim, cache.max_length,
            decoder.architecture.attention.scale,
        )  # fmt: skip
        self._qkv = [_fused_projection(layer.attention) for layer in decoder.layers]
        self._module = Module(compile_source("network", self._defines(), architecture()))
        names = ("fetch", "add_norm", "combine", "rotate_store", "route")
        self._kernels = {name: self._module.function(name) for name in names}
        self.logits = torch.zeros(0)

    def _defines(self) -> dict[str, int | float]:
        architecture = self._decoder.architecture
        spec, rule, shape = architecture.spec, architecture.router, self._mailbox.shape
        return {
            "HIDDEN": spec.hidden_size, "NORM_EPS": architecture.norm_eps,
            "TOP_K": spec.top_k, "SHARES_AT": shape.table.shares_at,
            "HEADS": spec.num_heads, "KV_HEADS": spec.num_kv_heads, "HEAD_DIM": spec.head_dim,
            "ROPE_DIM": architecture.rope.dim, "EXPERTS": spec.num_experts, "RANKS": shape.ranks,
            "SIGMOID": int(rule.scoring == "sigmoid"), "LOGITS_FP32": int(rule.in_fp32),
            "NORMALIZED": int(rule.normalized), "FACTOR": rule.factor,
            "ROUND_WEIGHTS": int(rule.round_weights),
        }  # fmt: skip

    def launch(self) -> None:
        """The whole step on the current stream; `logits` afterwards [tokens, vocabulary]."""
        decoder, kernels, inputs = self._decoder, self._kernels, self.inputs
        kernels["fetch"]((1,), _THREADS, inputs.host, inputs.device, len(inputs.host))
        torch.index_select(decoder.embedding, 0, inputs.part(0), out=self._stream)
        self._normed(None, decoder.layers[0].attention_norm.weight)
        for number, layer in enumerate(decoder.layers):
            assert isinstance(layer.attention, GroupedAttention), "latent attention comes later"
            following = (
                decoder.norm if number + 1 == len(decoder.layers)
                else decoder.layers[number + 1].attention_norm
            )  # fmt: skip
            attended = self._attend(number, layer.attention)
            block = layer.feed_forward
            self._normed(attended, block.norm.weight)
            if isinstance(block, DenseBlock):
                self._normed(block.network(self._x), following.weight)
            else:
                self._routed(block, following.weight)
        self.logits = functional.linear(self._x, decoder.head)

    def _normed(self, addend: torch.Tensor | None, weight: torch.Tensor) -> None:
        given = 0 if addend is None else addend
        grid = (self.inputs.tokens,)
        self._kernels["add_norm"](grid, _THREADS, self._stream, given, weight, self._x)

    def _attend(self, number: int, attention: GroupedAttention) -> torch.Tensor:
        spec, inputs, cache = self._decoder.architecture.spec, self.inputs, self._cache
        weight, bias = self._qkv[number]
        qkv = functional.linear(self._x, weight, bias)
        keys, values = cache.first[number], cache.second[number]
        slots, positions = inputs.part(1), inputs.part(2)
        norms = [0 if n is None else n.weight for n in (attention.query_norm, attention.key_norm)]
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self._kernels["rotate_store"](
            (heads, inputs.tokens), spec.head_dim, qkv, *norms, self._turns, slots, positions,
            self._queries, keys, values, cache.max_length,
        )  # fmt: skip
        mixed = self._attention.launch(self._queries, keys, values, slots, positions)
        return attention.output(mixed)

    def _routed(self, block: RoutedBlock, following: torch.Tensor) -> None:
        box, inputs, x = self._mailbox, self.inputs, self._x
        rule, router = block.router.rule, block.router
        logits = (
            functional.linear(x.float(), router.weight.float()) if rule.in_fp32
            else functional.linear(x, router.weight)
        )  # fmt: skip
        replay = (0, 0, 0) if self._replayed is None else [p[block.layer] for p in self._replayed]
        bias = 0 if router.bias is None else router.bias
        self._kernels["route"](
            (inputs.tokens,), 128, logits, bias, x, inputs.active, *replay,
            box["hidden"], box["ids"], box["weights"], box["ranked"], box["scores"],
        )  # fmt: skip
        write_value(box["routed"].data_ptr(), block.layer + 1)
        shared: torch.Tensor | int = 0
        if block.shared is not None:
            shared = feed_forward(block.shared.shape, block.shared.block, x)
            if block.shared_gate is not None:
                shared = block.shared_gate(x).sigmoid() * shared
        wait_value(box["planned"].data_ptr(), block.layer + 1)
        self._kernels["fetch"]((1,), _THREADS, box["table"], self._table, len(self._table))
        self._experts.launch(self._table, x)
        wait_value(box["summed"].data_ptr(), block.layer + 1)
        self._kernels["combine"](
            (inputs.tokens,), _THREADS, self._table, self._experts.parts, box["sum"], shared,
            self._stream, following, x,
        )  # fmt: skip


def _fused_projection(attention: object) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries, keys and values in one product."""
    assert isinstance(attention, GroupedAttention), "latent attention comes later"
    parts = (attention.query, attention.key, attention.value)
    weight = torch.cat([part.weight for part in parts])
    if attention.query.bias is None:
        return weight, None
    return weight, torch.cat([part.bias for part in parts if part.bias is not None])
