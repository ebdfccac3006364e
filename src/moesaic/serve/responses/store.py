"""Responses that can be asked for again, and that others go on from: in memory, the newest ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from moesaic.serve.api_error import ApiError
from moesaic.serve.responses.schemas import Item

MOST = 1000


@dataclass(frozen=True, slots=True)
class Stored:
    response: dict[str, Any]
    input: tuple[Item, ...]  # the whole conversation in front of its output

    @property
    def conversation(self) -> list[Item]:
        return [*self.input, *self.response["output"]]


class ResponseStore:
    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._kept: dict[str, Stored] = {}

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
