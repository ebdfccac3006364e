"""Which items of a batch cause its failure: the one place that decides who failed.

What fails together is tried again in halves, down to the items that fail alone. Those end with
their error, and the others have their results as if nothing had happened. A failure that is due to
no single item, such as a lost device, is then the failure of each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from moesaic.core.errors import FailedRows

Item = TypeVar("Item")
Result = TypeVar("Result")
Outcome = TypeVar("Outcome")


def run_isolated(
    items: Sequence[Item],
    attempt: Callable[[Sequence[Item]], Result],
    complete: Callable[[Sequence[Item], Result], list[Outcome]],
    fail: Callable[[Item, Exception], Outcome],
) -> list[Outcome]:
    """`attempt` must leave no trace where it raises. `complete` is called after every attempt that
    succeeds, before the next one, and is not repeated: what it raises is passed on. Interruptions
    (`KeyboardInterrupt`) are passed on, too. An error that names its rows saves the search."""
    if not items:
        return []
    try:
        result = attempt(items)
    except Exception as error:
        guilty: Sequence[int] = (0,) if len(items) == 1 else ()
        if isinstance(error, FailedRows):
            guilty = error.rows
        outcomes = [fail(items[row], error) for row in guilty]
    else:
        return complete(items, result)
    # After the `except`: its error would keep the tensors of the failed attempt in memory.
    rest = [item for row, item in enumerate(items) if row not in guilty]
    middle = len(rest) if guilty else len(rest) // 2
    for part in (rest[:middle], rest[middle:]):
        outcomes += run_isolated(part, attempt, complete, fail)
    return outcomes
