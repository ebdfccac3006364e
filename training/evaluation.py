"""What a network can do: surprise on held-out text, problems solved, experts used, text written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import tokenizers
import torch

from training.documents import chat_prompt, plain_prompt
from training.generation import continue_texts
from training.losses import shares, surprise
from training.network import Network
from training.packing import Rows
from training.problems import Problem, extract_answer, generate, same_answer
from training.step import to_device

HELD_OUT = ("held_out_numbers", "held_out_templates")
SEED = 0  # held-out problems are the same in every evaluation
_ROWS_AT_ONCE, _ANSWERS_AT_ONCE = 32, 512
FORMS: dict[str, Callable[[str], str]] = {"chat": chat_prompt, "plain": plain_prompt}


@dataclass(frozen=True, slots=True)
class Solved:
    """How many problems were, altogether and by kind."""

    right: int
    asked: int
    by_kind: dict[str, str] = field(default_factory=dict)  # "right of asked"
    mistakes: list[dict[str, str]] = field(default_factory=list)  # the first few

    @property
    def share(self) -> float:
        return self.right / self.asked


@torch.no_grad()
def text_loss(network: Network, rows: Rows, packed: bool, per_row: int) -> float:
    """Nats per counted token."""
    total = counted = 0.0
    for first in range(0, len(rows.tokens), _ROWS_AT_ONCE):
        part = rows.only(slice(first, first + _ROWS_AT_ONCE))
        batch = to_device(part, network.embedding.device, packed, per_row)
        hidden, _ = network(batch.tokens, batch.attention)
        weight = float(batch.counts[:, 1:].sum())
        total += weight * float(surprise(network.logits(hidden), batch.tokens, batch.counts))
        counted += weight
    return total / counted


@torch.no_grad()
def token_shares(network: Network, rows: Rows, packed: bool, per_row: int) -> list[list[float]]:
    """[layers][experts]: the part of all tokens that an expert computes; top_k in sum."""
    part = rows.only(slice(_ROWS_AT_ONCE))
    batch = to_device(part, network.embedding.device, packed, per_row)
    _, routings = network(batch.tokens, batch.attention)
    experts = network.shape.experts
    found = [shares(one.chosen, experts) * one.chosen.shape[1] for one in routings]
    return [[round(share, 5) for share in layer.tolist()] for layer in found]


def load_summary(layers: Sequence[Sequence[float]]) -> dict[str, Any]:
    return {
        "largest_share": [max(layer) for layer in layers],
        "smallest_share": [min(layer) for layer in layers],
        "unused": sum(share == 0 for layer in layers for share in layer),
    }


def solve(
    network: Network,
    tokenizer: tokenizers.Tokenizer,
    split: str,
    count: int,
    answer_tokens: int,
    form: str = "chat",
) -> Solved:
    """Exact match, greedy, in the form of a talk or of plain text."""
    problems = list(generate(split, SEED, count))
    answers: list[str] = []
    for first in range(0, count, _ANSWERS_AT_ONCE):
        part = problems[first : first + _ANSWERS_AT_ONCE]
        prompts = [tokenizer.encode(FORMS[form](problem.question)).ids for problem in part]
        written = continue_texts(network, prompts, answer_tokens)
        answers += tokenizer.decode_batch(written)
    return judge(problems, answers)


def judge(problems: Sequence[Problem], answers: Sequence[str], shown: int = 8) -> Solved:
    right: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    mistakes: list[dict[str, str]] = []
    for problem, text in zip(problems, answers, strict=True):
        found = extract_answer(text)
        good = found is not None and same_answer(found, problem.answer)
        asked[problem.kind] += 1
        right[problem.kind] += good
        if not good and len(mistakes) < shown:
            mistakes.append(
                {"question": problem.question, "written": text, "answer": problem.answer}
            )
    by_kind = {kind: f"{right[kind]} of {asked[kind]}" for kind in sorted(asked)}
    return Solved(right.total(), asked.total(), by_kind, mistakes)


def continuations(
    network: Network,
    tokenizer: tokenizers.Tokenizer,
    prompts: Sequence[str],
    new_tokens: int = 80,
    temperature: float = 0.7,
) -> list[dict[str, str]]:
    """How it goes on with the beginnings of texts it has not seen; drawn once, not chosen."""
    ids = [tokenizer.encode(prompt).ids for prompt in prompts]
    written = continue_texts(network, ids, new_tokens, temperature, SEED)
    texts = tokenizer.decode_batch(written)
    return [
        {"prompt": prompt, "continuation": text}
        for prompt, text in zip(prompts, texts, strict=True)
    ]
