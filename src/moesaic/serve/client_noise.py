"""What clients write into prompts for themselves: it differs with every request and says nothing to
a model. With it in front, no prefix of a prompt would ever be found again."""

from __future__ import annotations

_ACCOUNTING = "x-anthropic-billing-header:"  # a line of Claude Code


def is_accounting(text: str) -> bool:
    return text.startswith(_ACCOUNTING) and "\n" not in text.strip()


def without_accounting(text: str) -> str:
    """Instructions without such a line in front, which also comes through proxies that write one
    text of several blocks."""
    if not text.startswith(_ACCOUNTING):
        return text
    return text.partition("\n")[2].lstrip("\n")
