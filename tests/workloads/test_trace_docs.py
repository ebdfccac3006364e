"""Does the example in the documentation run?"""

from __future__ import annotations

import re
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "trace-format.md"


def test_the_example_runs() -> None:
    examples = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, str(DOCUMENT), "exec"), {})
