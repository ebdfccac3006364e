"""What came of one item: a line in a file, so that an evaluation can go on where it ended."""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True)
class ItemResult:
    task: str
    item: str
    group: str = ""
    kind: str = ""
    right: bool | None = None  # None: it could not be asked, or there is nothing to be right about
    why: str = ""
    answer: str | None = None
    expected: str | None = None
    cut: bool = False  # the answer, at its token limit
    prompt_tokens: int = 0
    tokens: int = 0  # generated; of a text: predicted
    seconds: float = 0.0  # of the model's time since the result before
    loss: float | None = None  # of a text, in nats, all its predicted tokens together
    bytes: float = 0.0
    words: float = 0.0

    @property
    def key(self) -> tuple[str, str]:
        return self.task, self.item

    @property
    def left_out(self) -> bool:
        return self.right is None and self.loss is None

    def line(self) -> str:
        """The line without fields that have their default."""
        fields = {name: value for name, value in asdict(self).items() if value != _DEFAULTS[name]}
        return json.dumps(fields, ensure_ascii=False)


_DEFAULTS = {
    field.name: None if field.default is MISSING else field.default for field in fields(ItemResult)
}


def from_line(line: str) -> ItemResult:
    """ValueError for anything that `line` has not made."""
    fields: Any = json.loads(line)
    try:
        return ItemResult(**fields)
    except TypeError as error:
        raise ValueError(str(error)) from None
