"""Which checkpoints of kept prefixes stay, within so many bytes of host memory.

Without a checkpoint, what lies between the one before it and it is read again where a prompt goes
on behind it. What goes first is what saves few tokens and was not used for long: so the beginning
that many prompts share stays, and of a long conversation the newest ones and a few between.
"""

from __future__ import annotations

from typing import Protocol

from moesaic.models.attentions.checkpoint import Checkpoint


class Holder(Protocol):
    """A node of the tree of prefixes. `checkpoints` are by length."""

    checkpoints: dict[int, Checkpoint]
    used: int

    @property
    def parent(self) -> Holder | None: ...


class Checkpoints:
    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._holders: dict[Checkpoint, Holder] = {}
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._holders)

    def add(self, node: Holder, saved: Checkpoint, clock: int) -> None:
        """Keep it with the node; others, or it itself, go where there is no room."""
        if saved.length in node.checkpoints:
            return
        self._keep(node, saved)
        while self.nbytes > self._limit:
            worst = min(self._holders, key=lambda held: self._worth(held, clock))
            self._drop(worst)

    def move(self, source: Holder, to: Holder) -> None:
        """Another node has the same tokens now."""
        for saved in [*source.checkpoints.values()]:
            self._drop(saved)
            if saved.length not in to.checkpoints:
                self._keep(to, saved)

    def drop(self, node: Holder) -> None:
        for saved in [*node.checkpoints.values()]:
            self._drop(saved)

    def _keep(self, node: Holder, saved: Checkpoint) -> None:
        node.checkpoints[saved.length] = saved
        self._holders[saved] = node
        self.nbytes += saved.nbytes

    def _drop(self, saved: Checkpoint) -> None:
        del self._holders.pop(saved).checkpoints[saved.length]
        self.nbytes -= saved.nbytes

    def _worth(self, saved: Checkpoint, clock: int) -> float:
        """Tokens that it saves, by how long it was not used."""
        node: Holder | None = self._holders[saved]
        unused = clock - self._holders[saved].used + 1
        before = 0
        while node is not None and not before:
            before = max((at for at in node.checkpoints if at < saved.length), default=0)
            node = node.parent
        return (saved.length - before) / unused
