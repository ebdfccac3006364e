"""What the gates of later layers say to a step's residual stream, computed beside its experts.

A branch of the captured step: it begins when a layer's routing is in the mailbox, and only
the next layer's branch waits for its end. The conductor gives its results to the brain where they
come in time."""

from __future__ import annotations

import torch
from torch.nn import functional

from moesaic.kernels.gpu.driver import Function, write_value
from moesaic.machines.captured.mailbox import Mailbox
from moesaic.model_info.network import RouterRule
from moesaic.models.experts.gate_bank import GateBank

_THREADS, _WARPS = 256, 8
_Kernels = dict[str, Function]


class StepForecasts:
    """Forecasts of up to `depth` later layers, for steps of so many `tokens`, the first `active` of
    which count. `side` is the branch's stream."""

    def __init__(
        self, gates: GateBank, rule: RouterRule, mailbox: Mailbox, kernels: _Kernels,
        side: torch.cuda.Stream, tokens: int, depth: int, active: torch.Tensor,
    ) -> None:  # fmt: skip
        shape = mailbox.shape
        assert tokens <= shape.forecast_rows, "a longer step does not look ahead"
        assert depth <= shape.forecasts, "the mailbox has no space"
        assert not gates.adds_to_logits, "no model with captured steps has such a router"
        self._gates, self._rule, self._mailbox, self._kernels = gates, rule, mailbox, kernels
        self._side, self._tokens, self.depth, self._active = side, tokens, depth, active
        self._ones = torch.ones(shape.hidden, dtype=torch.bfloat16, device="cuda")
        self._x = torch.zeros(tokens, shape.hidden, dtype=torch.bfloat16, device="cuda")
        outputs = depth * shape.experts
        self._logits = torch.zeros(1, outputs, dtype=torch.bfloat16, device="cuda")
        self._branched = False
        self._read: torch.cuda.Event | None = None

    def prepare(self) -> None:
        """Load every kernel: not while a GPU waits for the conductor."""
        for layer in range(self._mailbox.shape.layers):
            self.launch(self._x, layer)
        self.join()

    def launch(self, stream: torch.Tensor, layer: int) -> None:
        """Branch off from the current stream."""
        depth = self._gates.depth(layer, self.depth)
        if not depth:
            return
        self._branched = True
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            logits = self._product(stream, layer, depth)
            self._rank(logits, layer, depth)
            write_value(self._mailbox["forecast_ready"].data_ptr(), layer + 1)

    def release(self) -> None:
        """From here on the current stream may change what was given to `launch`."""
        if self._read is not None:
            torch.cuda.current_stream().wait_event(self._read)
            self._read = None

    def join(self) -> None:
        """The current stream waits for all branches."""
        if self._branched:
            torch.cuda.current_stream().wait_stream(self._side)
        self._branched, self._read = False, None

    def _product(self, stream: torch.Tensor, layer: int, depth: int) -> torch.Tensor:
        """Logits [tokens, depth * experts]."""
        gates, kernels = self._gates.gates(layer, depth), self._kernels
        if self._tokens == 1:
            logits = self._logits[:, : len(gates)]
            grid = (-(-len(gates) // _WARPS),)
            kernels["normed_product"](
                grid, _THREADS, stream, self._ones, gates, 0, logits, len(gates), 1
            )
            self._read = self._side.record_event()
            return logits
        kernels["add_norm"]((self._tokens,), _THREADS, stream, 0, self._ones, self._x)
        self._read = self._side.record_event()
        return functional.linear(self._x, gates)

    def _rank(self, logits: torch.Tensor, layer: int, depth: int) -> None:
        ids = self._mailbox["forecast_ids"][layer]
        scores = self._mailbox["forecast_scores"][layer]
        if self._rule.groups == 1:
            biases = self._gates.biases(layer, depth)
            self._kernels["forecast"](
                (self._tokens, depth), 32, logits, 0 if biases is None else biases, self._active,
                ids, scores, ids.shape[1],
            )  # fmt: skip
            return
        found = self._gates.ranked(layer, depth, self._rule.top_k, logits)
        for target, values in zip((ids, scores), found, strict=True):
            for later in range(depth):
                part = values[:, later].contiguous()
                target[later, : self._tokens].copy_(part, non_blocking=True)
