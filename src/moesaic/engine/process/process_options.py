"""How an engine in a process of its own is supervised."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral

from moesaic.core.errors import ImpossibleSetting


@dataclass(frozen=True, slots=True)
class ProcessOptions:
    restarts: int = 0  # how often an engine that has ended is started again without being asked
    stall_s: float | None = (
        300.0  # without progress on a request, the process is ended; None: never
    )
    unread_messages: int = 1024  # sent to a caller who has not read them; more wait in the engine
    unread_s: float = 30.0  # a caller for whom messages wait so long loses its requests

    def __post_init__(self) -> None:
        for name, least in (("restarts", 0), ("unread_messages", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ImpossibleSetting(
                    f"{name} is {value!r}; it must be a whole number from {least}"
                )
        for name in ("stall_s", "unread_s"):
            value = getattr(self, name)
            if value is None and name == "stall_s":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ImpossibleSetting(f"{name} is {value!r}; it must be a number above 0")
