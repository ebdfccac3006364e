"""Responses that can be asked for again, and that others go on from: in memory, the newest ones."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from moesaic.serve.api_error import ApiError
from moesaic.serve.responses.schemas import Item

MOST = 1000
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


class ResponseStore:
    def __init__(self, most: int = MOST, prefix: str = "resp_") -> None:
        """`prefix`: what ids begin with, of responses that are stored here."""
        self._most, self._prefix = most, prefix
        self._kept: dict[str, Stored] = {}

    def new_id(self) -> str:
        return f"{self._prefix}{uuid4().hex}"

    def add(self, stored: Stored) -> None:
        self._kept[stored.response["id"]] = stored
        while len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]

    def item(self, item_id: str) -> Item | None:
        """An item of an output, by which clients refer to it; the newest responses first."""
        for stored in reversed(self._kept.values()):
            for item in stored.response["output"]:
                if item["id"] == item_id:
                    found: Item = item
                    return found
        return None

    def get(self, response_id: str, param: str | None = None) -> Stored:
        found = self._kept.get(response_id)
        if found is None:
            raise ApiError(
                404,
                f"there is no response {response_id!r} here: the server keeps the last "
                f"{self._most} that were asked for with store, until it ends. Send the whole "
                "conversation as input",
                param=param,
                code="not_found",
            )
        return found

    def remove(self, response_id: str) -> None:
        self.get(response_id)
        del self._kept[response_id]
