"""One decode step's launches, for a fixed number of tokens: tokens in, logits or next tokens out.

Everything is at a fixed address and nothing depends on values Python sees, so the launches can be
captured once and replayed. At every MoE layer the GPU leaves hidden states and routing in the
mailbox, rings, and waits for the conductor's table and for the CPU's sum. Meanwhile the gates of
later layers are applied on a branch, where the prefetch policy asks for that."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn import functional

from moesaic.kernels.gpu.driver import wait_value, write_value
from moesaic.machines.captured.residual_stream import ResidualStream
from moesaic.machines.captured.step_attention import (
    GroupedStepAttention,
    LatentStepAttention,
    step_attention,
)
from moesaic.machines.captured.step_ending import Ending
from moesaic.machines.captured.step_forecasts import StepForecasts
from moesaic.machines.captured.step_inputs import StepInputs
from moesaic.machines.captured.step_parts import THREADS, WARPS, Replayed, StepParts
from moesaic.machines.captured.step_sampling import StepSampling
from moesaic.machines.real.forward_pass import RowSampling
from moesaic.machines.real.routing_adapter import ranked_experts
from moesaic.model_info.network import AttentionSpec
from moesaic.models.decoder import Layer
from moesaic.models.experts.feed_forward import DenseBlock, MoeBlock

Flag = tuple[int, int]  # its address, and the number to wait for
NO_FLAG: Flag = 0, 0
LONG_STEP = 64  # tokens: from here on the link's bandwidth counts, not its latency


class DecodeStep:
    """`tokens` is the batch size; a smaller batch leaves rows unused. `wanted` rows have logits,
    all of them unless given. A step that is not `gated` need not look at counts where that takes
    longer."""

    def __init__(
        self, parts: StepParts, tokens: int, replayed: Replayed | None = None,
        wanted: int | None = None, gated: bool = True,
    ) -> None:  # fmt: skip
        self._parts, self._decoder, self._mailbox = parts, parts.decoder, parts.mailbox
        self._kernels, self._replayed, self._stamps = parts.kernels, replayed, parts.stamps
        self._gated = gated
        spec = self._decoder.architecture.spec
        self.inputs = StepInputs.of(tokens, spec.top_k, parts.cache)  # none active
        self._experts = parts.experts(tokens)
        self.table_shape = self._experts.table_shape
        self._table = torch.zeros(self.table_shape.words, dtype=torch.int64, device="cuda")
        self.residual = ResidualStream(parts, tokens)
        self._attentions = {spec: self._attention(spec) for spec in parts.attentions}
        self._router_logits = torch.zeros(spec.num_experts, device="cuda")
        self._ended = torch.zeros(1, dtype=torch.int32, device="cuda")
        # Hidden states of many tokens travel while the layer is planned, and sums as bf16.
        self.is_long = tokens >= LONG_STEP
        self._sent: torch.cuda.Event | None = None  # the layer's hidden states
        self._forecasts: StepForecasts | None = None
        if replayed is None:  # else gates see a stream that their layers do not
            self._forecasts = parts.forecasts(tokens, self.inputs.active)
        self.logits = torch.zeros(0)
        rows = wanted or tokens
        self.host_logits = torch.zeros(rows, spec.vocab_size, dtype=torch.bfloat16, pin_memory=True)
        self.host_tokens = torch.zeros(rows, dtype=torch.int64, pin_memory=True)
        self._sampling: StepSampling | None = None  # made when a step is to sample

    def _attention(self, spec: AttentionSpec) -> GroupedStepAttention | LatentStepAttention:
        return step_attention(self._parts, self.inputs, spec)

    @property
    def forecasts(self) -> int:
        """The number of later layers that are forecast."""
        return 0 if self._forecasts is None else self._forecasts.depth

    def prepare(self, ending: Ending = Ending.LOGITS) -> None:
        """Compile everything: once a step has begun, the conductor does not wait for compilers."""
        if ending is Ending.SAMPLED and self._sampling is None:
            self._sampling = self._parts.sampling(len(self.host_tokens))
            self._sampling.launch(torch.zeros_like(self.host_logits[:1], device="cuda"))
        self._experts.prepare()
        for attention in self._attentions.values():
            attention.prepare()
        if self._forecasts is not None:
            self._forecasts.prepare()
        torch.cuda.synchronize()

    def write_sampling(self, sampling: Sequence[RowSampling]) -> None:
        """Write the sampling of the rows that the next launch returns."""
        assert self._sampling is not None, "prepared for sampling"
        self._sampling.write(sampling)

    def launch(self, ending: Ending = Ending.LOGITS) -> None:
        """The whole step on the current stream; `logits` afterwards [tokens, vocabulary], and
        `host_logits` in host memory. Greedy or sampled: `host_tokens` instead, the best of each
        row, the first of equals, or the one drawn; -1 where its logits are not finite."""
        decoder, residual = self._decoder, self.residual
        self._fetch_inputs()
        residual.begin(self.inputs.numbers)
        for number, layer in enumerate(decoder.layers):
            self._attend(number, layer)
            block = layer.feed_forward
            if isinstance(block, DenseBlock):
                residual.add(block.network(residual.normed(block.norm.weight)))
            else:
                self._routed(block)
        logits = self._head()
        if ending is Ending.GREEDY:
            self._parts.best.launch(logits, self.host_tokens)
        elif ending is Ending.SAMPLED:
            self._give_sampled(logits)
        else:
            self.logits = logits
            self.host_logits.copy_(logits, non_blocking=True)
        if self._forecasts is not None:
            self._forecasts.join()
        if self._stamps.on:
            words = len(self._stamps.host)
            self._kernels["leave_stamps"](
                (-(-words // THREADS),), THREADS, self._stamps.device, self._stamps.host, words,
                self._stamps.ended,
            )  # fmt: skip

    def output(self, ending: Ending) -> torch.Tensor:
        """The output of the last launch, in host memory."""
        return self.host_logits if ending is Ending.LOGITS else self.host_tokens

    def _give_sampled(self, logits: torch.Tensor) -> None:
        assert self._sampling is not None, "prepared for sampling"
        self.fetch(self._sampling.host, self._sampling.device)
        self.host_tokens.copy_(self._sampling.launch(logits), non_blocking=True)

    def _fetch_inputs(self) -> None:
        self._kernels["await_start"]((1,), 1, self._mailbox["start"])
        inputs, cache = self.inputs, self._parts.cache
        self.fetch(inputs.host, inputs.device, (0, self._stamps.begun))
        self._kernels["enter_blocks"](
            (-(-inputs.tokens // THREADS),), THREADS, inputs.slots, inputs.positions, inputs.blocks,
            inputs.active, cache.device_table, cache.blocks_of_slot,
        )  # fmt: skip

    def _head(self) -> torch.Tensor:
        decoder = self._decoder
        return self.residual.normed_product(decoder.norm.weight, decoder.output, each=4, head=True)

    def _compute(self, x: torch.Tensor, layer: int) -> None:
        """The experts in the table."""
        self._experts.launch(self._table, x)

    def _attend(self, number: int, layer: Layer) -> None:
        spec = self._decoder.architecture.network.layers[number].attention
        norm = layer.attention_norm.weight
        self._attentions[spec].launch(self.residual, number, layer.attention, norm)

    def fetch(
        self, pinned: torch.Tensor, copy: torch.Tensor, times: tuple[int, int] = (0, 0),
        flag: Flag = NO_FLAG,
    ) -> None:  # fmt: skip
        """64-bit words to the GPU, by a kernel: copies on a stream begin later. `times`:
        where it leaves when it began and when it had waited; `flag`: what it waits for."""
        blocks = -(-len(copy) // THREADS)
        self._kernels["fetch"]((blocks,), THREADS, pinned, copy, len(copy), *times, *flag)

    def _stamp(self, address: int) -> None:
        """The time when everything so far has ended."""
        if address:
            self._kernels["stamp"]((1,), 1, address)

    def _routed(self, block: MoeBlock) -> None:
        box, inputs, stamps, residual = self._mailbox, self.inputs, self._stamps, self.residual
        x = residual.x
        by_kernel = self._route(block)
        if self._forecasts is not None:
            self._forecasts.launch(residual.stream, block.layer)
        shared = self._share(block, x, early=by_kernel)
        self._await_plan(block)
        self._compute(x, block.layer)
        computed = stamps.at(block.layer, "computed")
        if not self._sees_flags:
            self._stamp(computed)
        if self._forecasts is not None:
            self._forecasts.release()
        if self._sent is not None:
            torch.cuda.current_stream().wait_event(self._sent)  # the next norm overwrites them
        summed = self._awaited("summed", block.layer)
        self._kernels["combine"](
            (-(-x.shape[1] // THREADS), inputs.tokens), THREADS, self._table,
            self.table_shape.shares_at, self._experts.parts, box["sum"], int(self.is_long), shared,
            residual.stream,
            stamps.at(block.layer, "summed"), *summed, computed if self._sees_flags else 0,
            early=self._sees_flags and self._forecasts is None,
        )  # fmt: skip

    def _share(self, block: MoeBlock, x: torch.Tensor, early: bool) -> torch.Tensor | int:
        """What the layer's shared experts say; 0: it has none. `early`: behind a kernel."""
        if block.shared is None:
            return 0
        one, products = self.inputs.tokens == 1, self._parts.shared
        if one and products.takes(block.shared):
            shared = products.launch(block.shared, x, early)
        else:
            shared = block.shared(x)
        if block.shared_gate is not None:
            shared = block.shared_gate(x).sigmoid() * shared
        if not self._sees_flags:  # else the kernel that fetches the table says when
            self._stamp(self._stamps.at(block.layer, "shared"))
        return shared

    def _await_plan(self, block: MoeBlock) -> None:
        """Wait until the layer's table has arrived."""
        stamps, layer = self._stamps, block.layer
        flag = self._awaited("planned", layer)
        shared = stamps.at(layer, "shared") if block.shared is not None and flag[0] else 0
        times = shared, stamps.at(layer, "planned")
        self.fetch(self._mailbox["table"], self._table, times, flag)

    @property
    def _sees_flags(self) -> bool:
        """Kernels of one token look at flags themselves, which takes a third of the time that the
        stream's own waiting takes. With more tokens so many blocks would look over the link that
        they would be in the way of weights."""
        return self.inputs.tokens == 1

    def _awaited(self, name: str, layer: int) -> Flag:
        """What the next kernel has to wait for, unless the stream does."""
        flag = self._mailbox[name].data_ptr()
        if self._sees_flags:
            return flag, layer + 1
        wait_value(flag, layer + 1)
        return NO_FLAG

    def _route(self, block: MoeBlock) -> bool:
        """Route from the residual stream to the mailbox, and ring; hidden states into `residual.x`,
        too. Whether a kernel is what came last."""
        box, inputs, router, residual = self._mailbox, self.inputs, block.router, self.residual
        replay = (0, 0, 0) if self._replayed is None else [p[block.layer] for p in self._replayed]
        bias = 0 if router.bias is None else router.bias
        choice = [box[name] for name in ("ids", "weights", "ranked", "scores")]
        routed, flag = self._stamps.at(block.layer, "routed"), box["routed"].data_ptr()
        if inputs.tokens == 1 and residual.is_complete and router.rule.groups == 1:
            grid = (-(-len(router.weight) // WARPS),)
            self._kernels["route_one"](
                grid, THREADS, residual.stream, block.norm.weight, router.weight, bias, residual.x,
                self._router_logits, self._ended, inputs.counts, *replay, box["hidden"], *choice,
                routed, flag, block.layer + 1, early=True,
            )  # fmt: skip
            return True
        x = residual.normed(block.norm.weight)
        if self.is_long:
            self._send_hidden(x, block.layer)
        if router.rule.groups > 1 and self._replayed is None:
            self._route_by_groups(block, x)
        else:
            wide = router.rule.in_fp32
            weight = router.weight.float() if wide else router.weight
            logits = functional.linear(x.float() if wide else x, weight)
            self._kernels["route"](
                (inputs.tokens,), 128, logits, bias, x, inputs.active, inputs.counts, *replay,
                0 if self.is_long else box["hidden"], *choice,
            )  # fmt: skip
        self._stamp(routed)
        write_value(flag, block.layer + 1)
        return False

    def _send_hidden(self, x: torch.Tensor, layer: int) -> None:
        """Send the hidden state to the mailbox, on a branch: the conductor plans meanwhile."""
        side = self._parts.copies
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._mailbox["hidden"][: self.inputs.tokens].copy_(x, non_blocking=True)
            write_value(self._mailbox["hidden_ready"].data_ptr(), layer + 1)
        self._sent = side.record_event()

    def _route_by_groups(self, block: MoeBlock, x: torch.Tensor) -> None:
        """Experts from the best groups only: PyTorch's operations, copied to the mailbox."""
        box, tokens = self._mailbox, self.inputs.tokens
        choice = block.router(x, self.inputs.counts if self._gated else None)
        ranked, scores = ranked_experts(choice, box.shape.ranks)
        rows = torch.arange(tokens, device="cuda")[:, None]
        active = rows < self.inputs.active
        if not self.is_long:
            box["hidden"][:tokens].copy_(x, non_blocking=True)
        box["ids"][:tokens].copy_(choice.experts.where(active, -1), non_blocking=True)
        box["weights"][:tokens].copy_(choice.weights.float(), non_blocking=True)
        box["ranked"][:tokens].copy_(ranked.where(active, -1), non_blocking=True)
        box["scores"][:tokens].copy_(scores.float(), non_blocking=True)
