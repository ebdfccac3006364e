"""An answer of which one call is wanted, by a model that may write several."""

from __future__ import annotations

from moesaic.serve.events import Event, OutputParser, ReasoningDelta, TextDelta


class OneCall:
    """Leaves out the calls after the first, which no grammar prevents unless a call is demanded."""

    def __init__(self, inner: OutputParser) -> None:
        self._inner = inner

    def feed(self, text: str) -> list[Event]:
        return _with_one_call(self._inner.feed(text))

    def finish(self) -> list[Event]:
        return _with_one_call(self._inner.finish())


def _with_one_call(events: list[Event]) -> list[Event]:
    return [
        each for each in events if isinstance(each, TextDelta | ReasoningDelta) or not each.index
    ]
