"""A model's logits over a text, chunk by chunk, and a file on disk to keep them in.

Memory stays small however long the text and wide the vocabulary: logits come in chunks, and those
that are kept are in a temporary file without a name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from moesaic.core.errors import BrokenModel, ImpossibleSetting
from moesaic.core.units import GB
from moesaic.engine.gated_reading import read
from moesaic.engine.runner import Runner

_PIECE_BYTES = 1 << 26
_SLOT = 0  # of the KV cache


class LogitsChunk(NamedTuple):
    start: int  # of the tokens with predictions, which are all but the last
    logits: torch.Tensor  # [tokens, vocabulary]: what should come after each
    targets: torch.Tensor  # [tokens]: what came


def text_logits(
    runner: Runner, tokens: Sequence[int], window: int, max_step_tokens: int
) -> Iterator[LogitsChunk]:
    """The KV cache is cleared every `window` tokens; a step has at most `max_step_tokens`.
    Nothing else may be generated meanwhile."""
    spec = runner.decoder.architecture.spec
    row_bytes = spec.vocab_size * runner.decoder.dtype.itemsize
    step = max(1, min(max_step_tokens, _PIECE_BYTES // row_bytes))
    try:
        for begin in range(0, len(tokens) - 1, window):
            runner.free_slot(_SLOT)
            end = min(begin + window, len(tokens) - 1)
            for start in range(begin, end, step):
                yield _piece(runner, tokens, start, min(start + step, end))
    finally:
        runner.free_slot(_SLOT)


def _piece(runner: Runner, tokens: Sequence[int], start: int, end: int) -> LogitsChunk:
    logits = read(runner, _SLOT, tokens[start:end])
    if not logits.isfinite().all():
        raise BrokenModel(rows=[0], batch=1)
    return LogitsChunk(start, logits, torch.tensor(tokens[start + 1 : end + 1]))


def logits_on_disk(tokens: int, vocabulary: int, dtype: torch.dtype) -> torch.Tensor:
    """Room for so many logits in a file without a name, [tokens, vocabulary]."""
    row_bytes = vocabulary * dtype.itemsize
    with tempfile.TemporaryFile() as file:
        try:
            # Without this a full disk would be found out by a signal that ends the process.
            os.posix_fallocate(file.fileno(), 0, tokens * row_bytes)
        except OSError as error:
            raise ImpossibleSetting(
                f"logits of {tokens} tokens take {tokens * row_bytes / GB:.2f} GB on disk, which "
                f"{tempfile.gettempdir()} does not have ({error.strerror}): use fewer tokens, or "
                "set TMPDIR to a place with more"
            ) from None
        memory = np.memmap(file, np.uint8, "r+", shape=(tokens, row_bytes))
    return torch.from_numpy(memory).view(dtype)
