"""Responses that can be asked for again, and that others go on from: in memory, the newest ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import msgspec

from moesaic.serve.api_error import ApiError
from moesaic.serve.responses.schemas import Item

MOST = 1000
MOST_BYTES = 256_000_000  # of all together, as JSON: an agent's turns each have its whole session
_OF_REPLICA = re.compile(r"resp_([0-9a-z]+)_[0-9a-f]+")


def response_prefix(replica: str | None) -> str:
    """What the ids of stored responses begin with."""
    return "resp_" if replica is None else f"resp_{replica}_"


def replica_of(response_id: str) -> str | None:
    """The replica that has stored it."""
    found = _OF_REPLICA.fullmatch(response_id)
    return None if found is None else found[1]


@dataclass(frozen=True, slots=True)
class Stored:
    response: dict[str, Any]
    input: tuple[Item, ...]  # the whole conversation in front of its output

    @property
    def conversation(self) -> list[Item]:
        return [*self.input, *self.response["output"]]

    def size(self) -> int:
        """Bytes as JSON. What several conversations share counts in each."""
        return len(msgspec.json.encode((self.response, self.input)))


class ResponseStore:
    def __init__(
        self, most: int = MOST, prefix: str = "resp_", most_bytes: int = MOST_BYTES
    ) -> None:
        """`prefix`: what ids begin with, of responses that are stored here."""
        self._most, self._prefix, self._most_bytes = most, prefix, most_bytes
        self._kept: dict[str, Stored] = {}  # the oldest first
        self._sizes: dict[str, int] = {}
        self._items: dict[str, Item] = {}  # of their outputs
        self._bytes = 0

    def new_id(self) -> str:
        return f"{self._prefix}{uuid4().hex}"

    def add(self, stored: Stored) -> None:
        """The oldest make room. One that is larger than all may be together is not kept."""
        size, response_id = stored.size(), stored.response["id"]
        if size > self._most_bytes:
            return
        self._kept[response_id], self._sizes[response_id] = stored, size
        self._bytes += size
        self._items |= {item["id"]: item for item in stored.response["output"]}
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def item(self, item_id: str) -> Item | None:
        """An item of an output, by which clients refer to it."""
        return self._items.get(item_id)

    def get(self, response_id: str, param: str | None = None) -> Stored:
        found = self._kept.get(response_id)
        if found is None:
            raise ApiError(
                404,
                f"there is no response {response_id!r} here: the server keeps the last "
                f"{self._most} that were asked for with store, up to {self._most_bytes / 1e6:g} MB "
                "together, until it ends. Send the whole conversation as input",
                param=param,
                code="not_found",
            )
        return found

    def remove(self, response_id: str) -> None:
        self.get(response_id)
        self._drop(response_id)

    def _drop(self, response_id: str) -> None:
        for item in self._kept.pop(response_id).response["output"]:
            name = item["id"]
            if self._items.get(name) is item:  # a newer one may have its name
                del self._items[name]
        self._bytes -= self._sizes.pop(response_id)
