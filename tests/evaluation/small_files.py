"""Files as users give them, small."""

from __future__ import annotations

import gzip
import json
import lzma
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def write_lines(path: Path, lines: Iterable[Any]) -> Path:
    """Objects as JSON; text as it is."""
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    content = text.encode()
    if path.suffix == ".gz":
        content = gzip.compress(content)
    if path.suffix == ".xz":
        content = lzma.compress(content)
    path.write_bytes(content)
    return path


def sum_of(a: int, b: int) -> dict[str, str]:
    """In the form of GSM8K."""
    return {"question": f"{a} plus {b}?", "answer": f"{a} + {b} = {a + b}\n#### {a + b:,}"}


def exercise(number: int = 0, **changes: Any) -> dict[str, Any]:
    """In the form of HumanEval."""
    return {
        "task_id": f"Test/{number}",
        "prompt": 'import math\n\n\ndef twice(x):\n    """Twice x."""\n',
        "entry_point": "twice",
        "test": "def check(candidate):\n    assert candidate(3) == 6\n",
        "canonical_solution": "    return 2 * x\n",
    } | changes
