"""An evaluation as a run needs it: quick losses often, problems and text now and then."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from training.evaluation import (
    HELD_OUT,
    SEED,
    Solved,
    continuations,
    load_summary,
    solve,
    text_loss,
    token_shares,
)
from training.network import Network
from training.packing import Rows, join_rows
from training.problem_rows import ShardMaker
from training.prose_rows import HELD_OUT_PROSE, as_rows
from training.recipe import Recipe
from training.token_file import Tokens, read_tokens
from training.tokenizer import END_ID, open_tokenizer

_PROMPTS, _PROMPT_TOKENS = 10, 24
_LOAD_ROWS = 10  # of each text


class Examination:
    """Held-out problems, and the prose that `training.prepare` held out."""

    def __init__(
        self, tokenizer: Path, prepared: Path, recipe: Recipe, packed: bool = False
    ) -> None:
        """`tokenizer` is its folder: `prepared` itself, or an exported model."""
        self.tokenizer: tokenizers.Tokenizer = open_tokenizer(tokenizer)
        self._recipe, self._packed = recipe, packed
        length, rows = recipe.shape.context, recipe.run.loss_rows
        tokens = read_tokens(prepared / HELD_OUT_PROSE)
        whole = tokens[: len(tokens) // length * length].reshape(-1, length)
        maker = ShardMaker(str(tokenizer), length, 0, 0, SEED)
        apart = max(1, len(whole) // rows)  # from all of it
        self._texts: dict[str, Rows] = {"prose": as_rows(whole[::apart][:rows])}
        for split in HELD_OUT:
            problems = maker.held_out(split, rows * 8)
            self._texts[split] = problems.only(slice(rows))
        self._prompts = [self.tokenizer.decode(ids) for ids in _beginnings(tokens)]

    def losses(self, network: Network) -> dict[str, float]:
        per_row = self._recipe.data.documents_per_row
        with _plainly(network):
            found = {
                name: round(text_loss(network, rows, self._packed, per_row), 4)
                for name, rows in self._texts.items()
            }
        return found | {"prose_perplexity": round(math.exp(found["prose"]), 2)}

    def loads(self, network: Network) -> list[list[float]]:
        """On prose and problems alike."""
        parts = [rows.only(slice(_LOAD_ROWS)) for rows in self._texts.values()]
        with _plainly(network):
            per_row = self._recipe.data.documents_per_row
            shares: list[list[float]] = token_shares(
                network, join_rows(parts), self._packed, per_row
            )
        return shares

    def solved(
        self, network: Network, top_k: int, problems: int, form: str = "chat"
    ) -> dict[str, Solved]:
        run = self._recipe.run
        with _plainly(network, top_k):
            return {
                split: solve(network, self.tokenizer, split, problems, run.answer_tokens, form)
                for split in HELD_OUT
            }

    def texts(self, network: Network) -> list[dict[str, str]]:
        with _plainly(network):
            return continuations(network, self.tokenizer, self._prompts)

    def report(self, network: Network, problems: int) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        full, loads = network.shape.top_k, self.loads(network)
        exact: dict[str, Any] = {}
        for name, top_k in (("full", full), ("half", max(1, full // 2))):
            solved = self.solved(network, top_k, problems)
            exact[name] = {split: round(one.share, 4) for split, one in solved.items()}
            if name == "full":
                exact["by_kind"] = {split: one.by_kind for split, one in solved.items()}
                exact["mistakes"] = {split: one.mistakes for split, one in solved.items()}
        return {
            "losses": self.losses(network),
            "exact_match": exact,
            "load": load_summary(loads),
            "token_shares": loads,
        }


@contextmanager
def _plainly(network: Network, top_k: int | None = None) -> Iterator[None]:
    """Without compiled layers: shapes change here from call to call."""
    run, before = network.run_layer, network.top_k
    network.compile_layers(False)
    network.use_top_k(top_k or before)
    try:
        yield
    finally:
        network.run_layer = run
        network.use_top_k(before)


def _beginnings(tokens: Tokens) -> list[list[int]]:
    """The first words of the first documents long enough."""
    found: list[list[int]] = []
    start = 0
    for end in [*(tokens == END_ID).nonzero()[0].tolist(), len(tokens)]:
        if end - start >= 2 * _PROMPT_TOKENS and len(found) < _PROMPTS:
            found.append(tokens[start : start + _PROMPT_TOKENS].tolist())
        start = end + 1
    return found
