"""Teaches a small model a text by heart: next-token training in plain torch, over the decoder that
runs it later. Seconds for a few million weights; not meant for more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.nn import functional

from moesaic.kernels.grouping import group_by_expert
from moesaic.kernels.reference import ACTIVATIONS, add_part
from moesaic.models.architecture import Architecture
from moesaic.models.build import DecoderBuilder
from moesaic.models.experts import Routed
from moesaic.models.router import Choice
from moesaic.models.step import Segment

LENGTH, BATCH = 96, 10  # tokens of an excerpt, excerpts in a step
_RATE, _BETAS, _WARMUP = 3e-3, (0.9, 0.95), 20
_LARGEST_GRADIENT = 1.0
_EVENNESS = 0.01  # how much an even use of the experts matters beside the text


@dataclass(frozen=True, slots=True)
class Lesson:
    """A text as tokens, and where its sentences begin: excerpts start there, as prompts do."""

    tokens: list[int]
    starts: list[int]

    def excerpts(self, count: int, random: torch.Generator) -> torch.Tensor:
        """[count, LENGTH + 1]; after its end, the text begins again."""
        chosen = torch.randint(len(self.starts), (count, 1), generator=random)
        places = torch.tensor(self.starts)[chosen] + torch.arange(LENGTH + 1)
        return torch.tensor(self.tokens)[places % len(self.tokens)]


def learn_by_heart(
    architecture: Architecture,
    lesson: Lesson,
    steps: int,
    seed: int = 0,
    advance: Callable[[int], None] = lambda steps: None,
) -> dict[str, torch.Tensor]:
    """The weights after so many steps, by their names in a checkpoint; `advance(1)` is called
    after each. All layers must have routed experts and none shared ones."""
    random = torch.Generator().manual_seed(seed)
    with _one_thread():
        pupil = _Pupil(architecture, random)
        weights = list(pupil.weights.values())
        optimizer = torch.optim.AdamW(weights, _RATE, _BETAS, weight_decay=0.0, fused=True)
        for step in range(steps):
            optimizer.param_groups[0]["lr"] = _rate(step, steps)
            optimizer.zero_grad()
            pupil.loss(lesson.excerpts(BATCH, random)).backward()
            torch.nn.utils.clip_grad_norm_(weights, _LARGEST_GRADIENT)
            optimizer.step()
            advance(1)
    return {name: weight.detach() for name, weight in pupil.weights.items()}


def _rate(step: int, steps: int) -> float:
    """Rises at first, then falls to a tenth."""
    return _RATE * min(1.0, (step + 1) / _WARMUP) * (1.0 - 0.9 * step / steps)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices this small gain nothing from more, and lose much where cores are busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class _Pupil:
    """A decoder whose tensors are the learned weights themselves."""

    def __init__(self, architecture: Architecture, random: torch.Generator) -> None:
        source = _Beginning(random)
        self.weights = source.tensors
        self._spec, self._activation = architecture.spec, ACTIVATIONS[architecture.activation]
        self._decoder = DecoderBuilder(architecture, source, _block).build()
        wide = (self._spec.expert_intermediate, self._spec.hidden_size)
        for layer in range(self._spec.num_layers):
            for expert in range(self._spec.num_experts):
                gate, up, down = _matrices(layer, expert)
                source.tensor(gate, *wide)
                source.tensor(up, *wide)
                source.tensor(down, *reversed(wide))

    def loss(self, excerpts: torch.Tensor) -> torch.Tensor:
        """How much the next tokens surprise, and how unevenly experts are used."""
        known, wanted = excerpts[:, :-1], excerpts[:, 1:]
        hidden, uneven = self._walk(known)
        logits = functional.linear(hidden, self.weights["lm_head.weight"])
        return functional.cross_entropy(logits, wanted.flatten()) + _EVENNESS * uneven

    def _walk(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        segments = [Segment(slot, tokens.shape[1]) for slot in range(len(tokens))]
        walk = self._decoder.walk(tokens.flatten(), segments, _NoMemory())
        uneven = torch.zeros(())
        try:
            routed = next(walk)
            while True:
                uneven = uneven + unevenness(routed.choice) / self._spec.num_layers
                routed = walk.send(self._experts(routed))
        except StopIteration as end:
            return end.value, uneven

    def _experts(self, routed: Routed) -> torch.Tensor:
        total = torch.zeros_like(routed.hidden)
        groups = group_by_expert(routed.choice.experts, routed.choice.weights)
        for expert, group in groups.items():
            gate, up, down = (self.weights[name] for name in _matrices(routed.layer, expert))
            rows = routed.hidden[group.tokens]
            inner = self._activation(functional.linear(rows, gate)) * functional.linear(rows, up)
            add_part(functional.linear(inner, down), group.tokens, group.weights, total)
        return total


class _Beginning:
    """Gives a network the tensors it starts to learn with: norms that change nothing, matrices
    that keep the size of what they are given."""

    def __init__(self, random: torch.Generator) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._random = random

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        values = torch.ones(shape)
        if len(shape) > 1:
            values.normal_(0.0, shape[-1] ** -0.5, generator=self._random)
        self.tensors[name] = values.requires_grad_()
        return values

    def empty(self, values: int) -> torch.Tensor:
        raise AssertionError("only dense layers and shared experts are packed")


class _NoMemory:
    """The cache of excerpts, which are read whole."""

    def length(self, slot: int) -> int:
        return 0

    def extend(
        self, layer: int, slot: int, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return first, second

    def advance(self, slot: int, tokens: int) -> None:
        pass

    def truncate(self, slot: int, length: int) -> None:
        pass


def unevenness(choice: Choice) -> torch.Tensor:
    """1 where all experts get as many tokens, more where few get most: the load-balancing loss of
    Switch Transformers (equation 4)."""
    count = choice.scores.shape[-1]
    share = torch.bincount(choice.experts.flatten(), minlength=count) / choice.experts.numel()
    return count * (share * choice.scores.mean(dim=0)).sum()


def _block(layer: int) -> str:
    return f"model.layers.{layer}.mlp"


def _matrices(layer: int, expert: int) -> tuple[str, str, str]:
    prefix = f"{_block(layer)}.experts.{expert}"
    return f"{prefix}.gate_proj.weight", f"{prefix}.up_proj.weight", f"{prefix}.down_proj.weight"
