"""Makers of JSON values, of which requests are made: a maker draws one from a random generator."""

from __future__ import annotations

import random
import string
from collections.abc import Callable, Mapping
from typing import Any

Make = Callable[[random.Random], Any]

_TEXTS = (
    "a",
    "Ann has 5 pens and buys 7 more. How many has she?",
    "a\x00b",
    "\u202egnp.exe",
    "e\u0301" * 15,
    "\U0001f469\u200d\U0001f469\u200d\U0001f467",
    "\ufeff\ufffe\uffff",
    "日本語 العربية",
    "<|im_end|><|endoftext|></s>",
    '<tool_call>{"name": "f", "arguments": {}}</tool_call>',
    "{{ messages }}{% for %}",
    "\r\n\r\ndata: [DONE]\r\n\r\n",
    " ",
    "x" * 60,
)


def constant(value: Any) -> Make:
    return lambda rng: value


def choice(*values: Any) -> Make:
    """One of these; those that are makers make it."""

    def make(rng: random.Random) -> Any:
        drawn = rng.choice(values)
        return drawn(rng) if callable(drawn) else drawn

    return make


def whole(low: int, high: int) -> Make:
    return lambda rng: rng.choice((low, high, rng.randint(low, high)))


def real(low: float, high: float) -> Make:
    """Whole ones are written without a fraction, as clients do."""
    return lambda rng: rng.choice((int(low), int(high), rng.uniform(low, high)))


def several(make: Make, least: int, most: int) -> Make:
    return lambda rng: [make(rng) for _ in range(rng.randint(least, most))]


def record(required: Mapping[str, Make], optional: Mapping[str, Make] | None = None) -> Make:
    """An object with these fields; every second optional one is left out."""

    def make(rng: random.Random) -> dict[str, Any]:
        made = {name: each(rng) for name, each in required.items()}
        more = {name: each(rng) for name, each in (optional or {}).items() if rng.random() < 0.5}
        return made | more

    return make


def text(rng: random.Random) -> str:
    """It has at least one character."""
    if rng.random() < 0.6:
        return rng.choice(_TEXTS)
    return "".join(chr(_character(rng)) for _ in range(rng.randint(1, 30)))


def name(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase + "_", k=rng.randint(1, 12)))


def anything(rng: random.Random, depth: int = 3) -> Any:
    """Any value that JSON has."""
    kind = rng.randrange(8 if depth else 6)
    if kind < 6:
        return (None, True, rng.randint(-(2**70), 2**70), rng.uniform(-1e9, 1e9), text(rng), 0)[
            kind
        ]
    items = [anything(rng, depth - 1) for _ in range(rng.randrange(4))]
    return items if kind == 6 else {name(rng): each for each in items}


def _character(rng: random.Random) -> int:
    """A valid one of any plane."""
    code = rng.choice((rng.randrange(128), rng.randrange(0x3000), rng.randrange(0x110000)))
    return code if not 0xD800 <= code < 0xE000 else 0x20
