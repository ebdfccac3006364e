"""The arguments of a call as an object: templates and the Messages API know no other form."""

from __future__ import annotations

import json
from typing import Any


def arguments_object(text: str) -> dict[str, Any]:
    """Arguments that an answer has not completed, or that are no object, are kept as they are: a
    client that repeats such a call can go on with its conversation."""
    try:
        made = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {"unfinished": text}
    return made if isinstance(made, dict) else {"value": made}
