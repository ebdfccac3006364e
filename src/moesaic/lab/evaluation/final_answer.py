"""How the final answer is found in what a model wrote, and compared with the expected one."""

from __future__ import annotations

import re

MARK = "Answer:"
_MARKED = re.compile(r"answer:[ \t]*([^\n]*)", re.IGNORECASE)
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def extract_answer(text: str) -> str | None:
    """What stands behind the last "Answer:", without a final period; None if nothing does."""
    found = [said.strip().removesuffix(".").strip() for said in _MARKED.findall(text)]
    said = [answer for answer in found if answer]
    return said[-1] if said else None


def same_answer(a: str | None, b: str | None) -> bool:
    """Equal up to case, spacing, a final period, a dollar sign and thousands commas."""
    return a is not None and b is not None and _plain(a) == _plain(b)


def _plain(answer: str) -> str:
    digits = _THOUSANDS.sub("", answer.lower())
    parts = [" ".join(part.split()) for part in digits.split(",")]
    return ",".join(parts).removesuffix(".").removeprefix("$").strip()
