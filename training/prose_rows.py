"""Prose as rows: windows over one long string of tokens, in another order every epoch."""

from __future__ import annotations

import numpy as np

from moesaic.core.errors import ImpossibleSetting
from training.packing import PERCENT, Rows
from training.token_file import Tokens
from training.tokenizer import END_ID

TRAINING_PROSE, HELD_OUT_PROSE = "prose.train.xz", "prose.held_out.xz"


class ProseRows:
    def __init__(self, tokens: Tokens, length: int, seed: int) -> None:
        self._tokens, self._length, self._seed = tokens, length, seed
        self._epoch = -1  # none yet
        self._order = np.empty(0, np.int64)
        self.per_epoch = len(tokens) // length - 1  # one less: windows are shifted
        if self.per_epoch < 1:
            raise ImpossibleSetting(
                f"{len(tokens)} tokens of prose are too few for rows of {length}: prepare more."
            )

    def rows(self, first: int, count: int) -> Rows:
        """The rows numbered `first` and on, since training began. Each epoch cuts elsewhere."""
        windows = [self._window(number) for number in range(first, first + count)]
        return as_rows(np.stack([self._tokens[at : at + self._length] for at in windows]))

    def _window(self, number: int) -> int:
        epoch, place = divmod(number, self.per_epoch)
        if epoch != self._epoch:
            random = np.random.default_rng((self._seed, epoch))
            shift = int(random.integers(self._length))
            self._order = random.permutation(self.per_epoch) * self._length + shift
            self._epoch = epoch
        return int(self._order[place])


def as_rows(tokens: Tokens) -> Rows:
    """Documents end with END; all tokens count but the first of a document."""
    starts = np.zeros(tokens.shape, np.bool_)
    starts[:, 0] = True
    starts[:, 1:] = tokens[:, :-1] == END_ID
    return Rows(tokens, np.where(starts, 0, PERCENT).astype(np.uint8), starts)
