"""What the decode steps of all batch sizes share: the network, its caches, the mailbox, kernels and
buffers that stay where they are."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import torch

from moesaic.kernels.gpu.best_tokens import BestTokens
from moesaic.kernels.gpu.driver import Function
from moesaic.kernels.gpu.experts import GpuExperts
from moesaic.kernels.gpu.modules import load_module
from moesaic.kernels.gpu.sampling import TokenSampling
from moesaic.machines.accelerators import LARGEST_BATCH
from moesaic.machines.captured.attention_parts import AttentionParts, Defines, grouped_defines
from moesaic.machines.captured.dense_products import MOST_SHARED, DenseProducts
from moesaic.machines.captured.mailbox import Mailbox
from moesaic.machines.captured.shared_products import SharedProducts
from moesaic.machines.captured.stamps import Stamps
from moesaic.machines.captured.step_forecasts import StepForecasts
from moesaic.machines.captured.step_sampling import StepSampling
from moesaic.model_info.network import AttentionSpec
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.decoder import Decoder
from moesaic.models.experts.gate_bank import GateBank

_KERNELS = (
    "fetch", "add_norm", "combine", "route", "normed_product", "route_one", "stamp",
    "forecast", "await_start", "enter_blocks", "leave_stamps",
)  # fmt: skip

THREADS = 256  # of most kernels' blocks
WARPS = THREADS // 32


class Replayed(NamedTuple):
    """Another's choices for the current step: experts [layers, tokens, ranks], their scores, and
    the weights of the first top-k of them."""

    ranked: torch.Tensor
    scores: torch.Tensor
    weights: torch.Tensor

    @classmethod
    def space(cls, layers: int, tokens: int, ranks: int, top_k: int) -> Replayed:
        return cls(
            torch.zeros(layers, tokens, ranks, dtype=torch.int64, device="cuda"),
            torch.zeros(layers, tokens, ranks, device="cuda"),
            torch.zeros(layers, tokens, top_k, device="cuda"),
        )


class StepParts:
    """`decoder` and `cache` are on the GPU, in bf16. The mailbox is for the largest batch.
    `buffers` of a machine that does not run at the same time are used if they are large enough.
    With `gates`, steps forecast later layers."""

    def __init__(
        self, decoder: Decoder, cache: BlockCache, mailbox: Mailbox, expert_dtype: str,
        buffers: tuple[torch.Tensor, torch.Tensor] | None = None, stamped: bool = True,
        gates: GateBank | None = None,
    ) -> None:  # fmt: skip
        """`stamped`: kernels leave their times."""
        architecture = decoder.architecture
        spec, shape = architecture.spec, mailbox.shape
        self.decoder, self.cache, self.mailbox, self.dtype = decoder, cache, mailbox, expert_dtype
        self.stamps = Stamps(spec.num_moe_layers, on=stamped)
        self._gates, self._side = gates, torch.cuda.Stream()
        self.copies = torch.cuda.Stream()  # branch on which hidden states travel
        if buffers is not None and len(buffers[0]) < shape.tokens * shape.top_k:
            buffers = None
        self._whole = self._experts(shape.tokens, buffers)
        # Of every kind of attention in the network; kernels of none of them are the first one's.
        kinds = tuple(dict.fromkeys(layer.attention for layer in architecture.network.layers))
        defines = {kind: self._defines(kind) for kind in kinds}
        module = load_module("network", defines[kinds[0]])
        self.kernels: dict[str, Function] = {name: module.function(name) for name in _KERNELS}
        self.attentions = {
            kind: AttentionParts(decoder, kind, macros, shape.tokens, cache.max_length)
            for kind, macros in defines.items()
        }
        # By the values that attention's output projection multiplies.
        self.add_product: dict[int, Function] = {
            kind.mixed_width: load_module("network", macros).function("add_product")
            for kind, macros in defines.items()
            if "ATTENDED" in macros
        }
        self.dense = DenseProducts(decoder, sorted({kind.mixed_width for kind in kinds}))
        self.shared = SharedProducts(decoder)
        self.best = BestTokens(LARGEST_BATCH)

    def experts(self, tokens: int) -> GpuExperts:
        """Expert kernels for a batch; all batches share buffers."""
        whole = self._whole
        if tokens == self.mailbox.shape.tokens:
            return whole
        return self._experts(tokens, (whole.inner, whole.parts))

    def forecasts(self, tokens: int, active: torch.Tensor) -> StepForecasts | None:
        """Where they are asked for, and the step is not too long to look ahead."""
        shape = self.mailbox.shape
        if self._gates is None or not shape.forecasts or tokens > shape.forecast_rows:
            return None
        return StepForecasts(
            self._gates, self.decoder.architecture.router, self.mailbox, self.kernels, self._side,
            tokens, shape.forecasts, active,
        )  # fmt: skip

    def sampling(self, rows: int) -> StepSampling:
        """For a step that samples so many rows."""
        return StepSampling.of(rows, self.decoder.architecture.spec.vocab_size, self._sampling)

    @cached_property
    def _sampling(self) -> TokenSampling:
        """Made when the first such step is: it has counts of 256 KiB per sequence, up to 8 MiB."""
        vocabulary = self.decoder.architecture.spec.vocab_size
        return TokenSampling(LARGEST_BATCH, self.cache.slots, vocabulary)

    def _experts(
        self, tokens: int, buffers: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> GpuExperts:
        shape = self.mailbox.shape
        return GpuExperts(
            self.decoder.architecture.expert_shape, self.dtype, tokens, shape.top_k,
            shape.experts, buffers=buffers,
        )  # fmt: skip

    def _defines(self, attention: AttentionSpec) -> Defines:
        architecture = self.decoder.architecture
        spec, rule = architecture.spec, architecture.router
        defines: Defines = {
            "HIDDEN": spec.hidden_size, "NORM_EPS": architecture.network.norm.eps,
            "TOP_K": spec.top_k,
            "EXPERTS": spec.num_experts, "RANKS": self.mailbox.shape.ranks,
            "SIGMOID": int(rule.scoring == "sigmoid"), "LOGITS_FP32": int(rule.in_fp32),
            "NORMALIZED": int(rule.normalized), "FACTOR": rule.factor,
            "ROUND_WEIGHTS": int(rule.round_weights),
        }  # fmt: skip
        if attention.mixed_width <= MOST_SHARED:
            defines["ATTENDED"] = attention.mixed_width
        return defines | grouped_defines(attention)
