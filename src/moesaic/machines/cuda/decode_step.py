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
from moesaic.models.feed_forward import DenseBlock, MoeBlock
from moesaic.models.grouped_attention import GroupedAttention
from moesaic.models.rope import rotation

_THREADS = 256  # of most kernels' blocks
_WARPS = _THREADS // 32


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
        self._stream = torch.zeros(tokens, spec.hidden_size, **like)
        self._x = torch.zeros_like(self._stream)
        self._queries = torch.zeros(tokens, spec.num_heads * spec.head_dim, **like)
        positions = torch.arange(cache.max_length, device="cuda")
        turns = rotation(rope, decoder.frequencies, positions)
        self._turns = torch.cat((turns.cos, turns.sin), dim=1).contiguous()
        self._attention = DecodeAttention(
            tokens, spec.num_heads, spec.num_kv_heads, spec.head_dim, cache.max_length,
            decoder.architecture.attention.scale,
        )  # fmt: skip
        self._qkv = [_fused_projection(layer.attention) for layer in decoder.layers]
        self._module = Module(compile_source("network", self._defines(), architecture()))
        names = (
            "fetch", "add_norm", "combine", "rotate_store", "route",
            "normed_product", "add_product", "route_one",
        )  # fmt: skip
        self._kernels = {name: self._module.function(name) for name in names}
        self._router_logits = torch.zeros(spec.num_experts, device="cuda")
        self._ended = torch.zeros(1, dtype=torch.int32, device="cuda")
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
        decoder, inputs = self._decoder, self.inputs
        self._fetch(inputs.host, inputs.device)
        torch.index_select(decoder.embedding, 0, inputs.part(0), out=self._stream)
        self._pending: torch.Tensor | None = None
        for number, layer in enumerate(decoder.layers):
            assert isinstance(layer.attention, GroupedAttention), "latent attention comes later"
            self._attend(number, layer.attention, layer.attention_norm.weight)
            block = layer.feed_forward
            if isinstance(block, DenseBlock):
                self._add(block.network(self._normed(block.norm.weight)))
            else:
                self._routed(block)
        self.logits = self._normed_product(decoder.norm.weight, decoder.head, None, each=4)

    def _fetch(self, pinned: torch.Tensor, copy: torch.Tensor) -> None:
        self._kernels["fetch"]((1,), _THREADS, pinned, copy, len(copy))

    def _add(self, addend: torch.Tensor) -> None:
        """To the residual stream, together with the next norm."""
        assert self._pending is None, "a norm comes between two additions"
        self._pending = addend

    def _normed(self, weight: torch.Tensor) -> torch.Tensor:
        addend: torch.Tensor | int = 0 if self._pending is None else self._pending
        grid = (self.inputs.tokens,)
        self._kernels["add_norm"](grid, _THREADS, self._stream, addend, weight, self._x)
        self._pending = None
        return self._x

    def _normed_product(
        self, norm: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, each: int = 1
    ) -> torch.Tensor:
        """norm(stream) @ weight.T + bias; of one token, `each` outputs are computed by a warp."""
        if self.inputs.tokens > 1 or self._pending is not None:
            return functional.linear(self._normed(norm), weight, bias)
        out = torch.empty(1, len(weight), dtype=weight.dtype, device="cuda")
        grid = (-(-len(weight) // (_WARPS * each)),)
        self._kernels["normed_product"](
            grid, _THREADS, self._stream, norm, weight, 0 if bias is None else bias, out,
            len(weight), each, early=True,
        )  # fmt: skip
        return out

    def _attend(self, number: int, attention: GroupedAttention, norm: torch.Tensor) -> None:
        spec, inputs, cache = self._decoder.architecture.spec, self.inputs, self._cache
        qkv = self._normed_product(norm, *self._qkv[number], each=2)
        keys, values = cache.first[number], cache.second[number]
        slots, positions = inputs.part(1), inputs.part(2)
        norms = [0 if n is None else n.weight for n in (attention.query_norm, attention.key_norm)]
        heads = spec.num_heads + 2 * spec.num_kv_heads
        self._kernels["rotate_store"](
            (heads, inputs.tokens), spec.head_dim, qkv, *norms, self._turns, slots, positions,
            self._queries, keys, values, cache.max_length, early=True,
        )  # fmt: skip
        mixed = self._attention.launch(self._queries, keys, values, slots, positions)
        if inputs.tokens > 1:
            self._add(attention.output(mixed))
            return
        weight, bias = attention.output
        self._kernels["add_product"](
            (-(-spec.hidden_size // _WARPS),), _THREADS, mixed, weight,
            0 if bias is None else bias, self._stream, early=True,
        )  # fmt: skip

    def _routed(self, block: MoeBlock) -> None:
        box, inputs, x = self._mailbox, self.inputs, self._x
        self._route(block)
        write_value(box["routed"].data_ptr(), block.layer + 1)
        shared: torch.Tensor | int = 0
        if block.shared is not None:
            shared = feed_forward(block.shared.shape, block.shared.block, x)
            if block.shared_gate is not None:
                shared = block.shared_gate(x).sigmoid() * shared
        wait_value(box["planned"].data_ptr(), block.layer + 1)
        self._fetch(box["table"], self._table)
        self._experts.launch(self._table, x)
        wait_value(box["summed"].data_ptr(), block.layer + 1)
        self._kernels["combine"](
            (-(-x.shape[1] // _THREADS), inputs.tokens), _THREADS, self._table,
            self._experts.parts, box["sum"], shared, self._stream,
        )  # fmt: skip

    def _route(self, block: MoeBlock) -> None:
        """From the residual stream to the mailbox; hidden states into `_x`, too."""
        box, inputs, router = self._mailbox, self.inputs, block.router
        replay = (0, 0, 0) if self._replayed is None else [p[block.layer] for p in self._replayed]
        bias = 0 if router.bias is None else router.bias
        choice = [box[name] for name in ("hidden", "ids", "weights", "ranked", "scores")]
        if inputs.tokens == 1 and self._pending is None:
            grid = (-(-len(router.weight) // _WARPS),)
            self._kernels["route_one"](
                grid, _THREADS, self._stream, block.norm.weight, router.weight, bias, self._x,
                self._router_logits, self._ended, *replay, *choice, early=True,
            )  # fmt: skip
            return
        x = self._normed(block.norm.weight)
        wide = router.rule.in_fp32
        weight = router.weight.float() if wide else router.weight
        logits = functional.linear(x.float() if wide else x, weight)
        self._kernels["route"](
            (inputs.tokens,), 128, logits, bias, x, inputs.active, *replay, *choice
        )


def _fused_projection(attention: object) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Queries, keys and values in one product."""
    assert isinstance(attention, GroupedAttention), "latent attention comes later"
    parts = (attention.query, attention.key, attention.value)
    weight = torch.cat([part.weight for part in parts])
    if attention.query.bias is None:
        return weight, None
    return weight, torch.cat([part.bias for part in parts if part.bias is not None])
