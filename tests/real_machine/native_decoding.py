"""A small stock model decoded twice: by the native step, and layer by layer with PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch

import stock
from moesaic.core.routing import ExpertId
from moesaic.hardware.host import usable_nodes
from moesaic.kernels import _native
from moesaic.kernels.instruction_sets import choose
from moesaic.kernels.native import NativeKernel
from moesaic.kernels.native_linear import DenseRunner
from moesaic.machines.cpu_step.native_step import Forced, NativeStep
from moesaic.machines.cpu_step.step_result import StepResult
from moesaic.machines.real.expert_store import ExpertStore
from moesaic.machines.real.forward_pass import ForwardPass, Piece
from moesaic.model_info.dense_bytes import DensePrecision
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.experts.expert_service import ResidentExperts, RoutedTokens
from moesaic.models.experts.router import Choice
from moesaic.models.open_model import (
    OpenModel,
    load_decoder,
    load_resident_experts,
    open_model,
    readable_experts,
)
from moesaic.models.token_batch import Segment

LENGTH = 300  # positions of a slot


class Layerwise:
    """PyTorch's products and reference experts, in bf16."""

    def __init__(self, model: OpenModel, slots: int, kv_dtype: str = "auto") -> None:
        self.decoder = load_decoder(model, "bf16", kernel="reference")
        self.experts: ResidentExperts = load_resident_experts(model, "bf16")
        spec = model.architecture.spec
        self.cache = BlockCache(spec, slots, LENGTH, torch.bfloat16, kv_dtype=kv_dtype)
        self.choices: list[Choice] = []

    def step(
        self,
        tokens: Sequence[int],
        segments: Sequence[tuple[int, int]],
        counts: torch.Tensor | None = None,
    ) -> torch.Tensor:
        parts = [Segment(*each) for each in segments]
        numbers = torch.tensor(tokens)
        self.choices = []
        hidden = self.decoder.forward(numbers, parts, self.cache, self, counts)
        return self.decoder.logits(hidden)

    def compute(self, routed: RoutedTokens) -> torch.Tensor:
        self.choices.append(routed.choice)
        return self.experts.compute(routed)

    def routing(self) -> Forced:
        """Of the last step."""
        experts = torch.stack([choice.experts for choice in self.choices])
        weights = torch.stack([choice.weights.float() for choice in self.choices])
        return Forced(experts.numpy(), weights.numpy())


class Native:
    def __init__(
        self,
        model: OpenModel,
        slots: int,
        dense: str = "bf16",
        experts: str = "bf16",
        isa: str = "auto",
        threads: int = 3,
        kv_dtype: str = "auto",
    ) -> None:
        isa = choose(isa)
        self.decoder = load_decoder(model, "bf16", dense=DenseRunner(DensePrecision.of(dense), isa))
        spec = model.architecture.spec
        kernel = NativeKernel(model.architecture.expert_shape, experts, isa)
        self.store = ExpertStore(kernel, spec.num_moe_layers, spec.num_experts, usable_nodes())
        for which, weights in readable_experts(model):
            self.store.put(ExpertId(*which), weights)
        self.cache = BlockCache(spec, slots, LENGTH, torch.bfloat16, kv_dtype=kv_dtype)
        self.native = NativeStep(
            self.decoder, self.store, self.cache, _native.Pool([-1] * (threads - 1), 50.0)
        )

    def step(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        counts: torch.Tensor | None = None,
        forced: Forced | None = None,
    ) -> StepResult:
        pieces = [Piece(slot, [token]) for token, slot in zip(tokens, slots, strict=True)]
        work = ForwardPass(pieces).placed(self.cache.length)
        result = self.native.run(work, counts, forced)
        for slot in slots:
            self.cache.advance(slot, 1)
        return result


def both(
    family: str, slots: int, dense: str = "bf16", experts: str = "bf16", isa: str = "auto"
) -> tuple[Layerwise, Native]:
    return both_of(open_model(stock.saved(family).folder), slots, dense, experts, isa)


def both_of(
    model: OpenModel, slots: int, dense: str = "bf16", experts: str = "bf16", isa: str = "auto"
) -> tuple[Layerwise, Native]:
    return Layerwise(model, slots), Native(model, slots, dense, experts, isa)
