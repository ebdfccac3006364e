"""Changes that make a hostile file of a valid one, chosen by a random generator.

Bytes are flipped, cut and repeated; values inside JSON and TOML are replaced by those that
parsers, arithmetic and allocation fail on."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from typing import Any

DEEP = 3000
# Raw JSON texts: some are no JSON, some are more than Python's parser takes.
VALUES = (
    "null",
    "true",
    "0",
    "-1",
    "1",
    "3",
    "7",
    "1.5",
    "-0.0",
    "1e-320",
    "1e308",
    "1e999",
    "NaN",
    "Infinity",
    "-Infinity",
    "2147483648",
    "9223372036854775807",
    "9223372036854775808",
    "100000000",
    "1" + "0" * 30,
    "1" + "0" * 400,
    "9" * 5000,
    '""',
    '"x"',
    '"\\ud800"',
    '"\\u0000"',
    '"../../x"',
    '"\\u001b[31m"',
    '"' + "y" * 3000 + '"',
    "[]",
    "{}",
    "[[]]",
    "[0, 0]",
    "[-1, 1e999]",
    '{"content": 1}',
    '{"value": 1e400, "source": ""}',
    "[" * 60 + "]" * 60,
    "[" * DEEP + "]" * DEEP,
    '{"a":' * DEEP + "1" + "}" * DEEP,
)
_TOML_VALUE = re.compile(r"(?<==)\s*[^\s,}\]#]+")
_MARK = "@@mark@@"


def mutate_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to four changes anywhere."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(changed) + 1)
        match rng.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << rng.randrange(8)
            case 1:
                del changed[place:]
            case 2:
                changed[place:place] = rng.randbytes(rng.randint(1, 8))
            case 3:
                changed[place:place] = changed[place : place + rng.randint(1, 64)]
            case _:
                del changed[place : place + rng.randint(1, 16)]
    return bytes(changed)


# What a count, a size or a type becomes, cut to the width of what was there.
_SMALL = (0, 1, 2, 7, 31, 255, 2**16, 2**27, 2**31 - 1, 2**31, 2**32 - 1)
_INTEGERS = (*_SMALL, 2**40, 2**61, 2**63 - 1, 2**63, 2**64 - 32, 2**64 - 1)


def mutate_pieces(pieces: Sequence[bytes], rng: random.Random) -> bytes:
    """One to three of the pieces a binary file is written of: replaced by another number, or by
    another piece, removed or repeated."""
    changed = list(pieces)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(changed))
        match rng.randrange(6):
            case 0:
                changed[place] = rng.choice(changed)
            case 1:
                changed.insert(place, rng.choice(changed))
            case 2 if len(changed) > 1:
                del changed[place]
            case _:
                width = min(len(changed[place]), 8)
                number = rng.choice(_INTEGERS) & (256**width - 1)
                changed[place] = number.to_bytes(width, "little") + changed[place][width:]
    return b"".join(changed)


def mutate_json(value: Any, rng: random.Random) -> bytes:
    """One or two values replaced, removed or renamed; as a text that may be no JSON."""
    text = json.dumps(value)
    for _ in range(rng.randint(1, 2)):
        try:
            root = json.loads(text)
        except (ValueError, RecursionError):
            break
        text = _with_change(root, rng)
    return text.encode("utf-8", "surrogatepass")


def _with_change(root: Any, rng: random.Random) -> str:
    holder = [root]
    container, key = _place(holder, rng)
    raw = rng.choice(VALUES)
    kind = rng.randrange(8)
    if kind == 0:
        del container[key]
        return json.dumps(holder[0]) if holder else raw
    if kind == 1 and isinstance(container, dict):
        container["".join(rng.choices("ab\ud800\x1b._", k=3))] = container.pop(key)
        return json.dumps(holder[0])
    container[key] = _MARK
    return json.dumps(holder[0]).replace(json.dumps(_MARK), raw)


def _place(holder: list[Any], rng: random.Random) -> tuple[Any, Any]:
    """A container within `holder` and one of its keys: any value, all as probable."""
    places: list[tuple[Any, Any]] = [(holder, 0)]
    for container, key in places:  # which grows
        value = container[key]
        if isinstance(value, dict | list):
            keys = value if isinstance(value, dict) else range(len(value))
            places += [(value, each) for each in keys]
    return rng.choice(places)


def mutate_toml(text: str, rng: random.Random) -> bytes:
    """A value replaced, or lines removed, repeated and exchanged."""
    lines = text.split("\n")
    for _ in range(rng.randint(1, 3)):
        number = rng.randrange(len(lines))
        match rng.randrange(6):
            case 0:
                del lines[number]
            case 1:
                lines.insert(rng.randrange(len(lines)), lines[number])
            case 2:
                lines.insert(number, "a." * rng.choice((3, 70, 50_000)) + "b = 1")
            case _:
                raw = rng.choice(VALUES).replace("\\", "\\\\").replace("NaN", "nan")
                lines[number] = _TOML_VALUE.sub(
                    raw.replace("Infinity", "inf"), lines[number], count=1
                )
        lines = lines or [""]
    return "\n".join(lines).encode()


_PIECES = (
    "{% break %}",
    "{% continue %}",
    "{% endfor %}",
    "{% if x %}",
    "{% for a in b %}",
    "{{ " + "(" * 200 + "1" + ")" * 200 + " }}",
    "{{ x.y.z }}",
    "{{ messages.__class__ }}",
    "{{ messages[99] }}",
    "{{ 1 / 0 }}",
    "{{ '%d' % 'a' }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% set x = namespace(a=1) %}{% set x.__b = 1 %}",
    "{{ raise_exception(1) }}",
    "{{ strftime_now(1) }}",
    "{{ messages | tojson(indent='x') }}",
    "{% generation %}",
    "{% raw %}",
    "{#",
    "{{ 'a' | unknown }}",
    "{% extends 'x' %}",
    "{% import 'x' as y %}",
    "{{ loop.index }}",
    "{{ cycler() }}",
    "{{ [1] | batch(0) | list }}",
    "{{ [1] | slice(0) | list }}",
    "{{ range(10 ** 9) }}",
)


def mutate_template(text: str, rng: random.Random) -> bytes:
    """Pieces that do not belong there, besides changed bytes."""
    if rng.random() < 0.4:
        return mutate_bytes(text.encode(), rng)
    for _ in range(rng.randint(1, 3)):
        place = rng.randrange(len(text) + 1)
        text = text[:place] + rng.choice(_PIECES) + text[place:]
    return text.encode()
