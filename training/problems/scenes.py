"""Everyday settings of a list: a queue, a shelf, the stops of a train.

They are blocks in data/scenes/, one file for each family:

    == bus-queue
    of: people                                      a pool, see pools.py
    which: who                                      how one of them is asked for
    nouns: people
    where: in the queue
    title: the queue at the bus stop                "The queue at the bus stop: 1 ..."
    told: {} wait for the bus in this order         several lines: wordings
    after: stands right behind                      "Who stands right behind Ada?"
    before: stands right in front of
    first: Who gets on the bus first
    last: Who gets on the bus last
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from random import Random
from typing import NamedTuple

from training.problems.chance import pick
from training.problems.grammar import capital, enumerate_words
from training.problems.places import counted
from training.problems.pools import POOLS, Pool
from training.problems.reader import blocks
from training.problems.text import Fields

_FIELDS = "which Which nouns where after_q before_q first_q last_q told tells clause items"
FIELDS = tuple(_FIELDS.split())


class Scene(NamedTuple):
    pool: Pool
    said: Fields
    title: str
    told: tuple[str, ...]


@cache
def family(name: str) -> tuple[Scene, ...]:
    file = files("training.problems") / "data" / "scenes" / f"{name}.txt"
    return tuple(_scene(lines) for _, lines in blocks(file.read_text(encoding="ascii")))


def _scene(lines: list[tuple[str, str]]) -> Scene:
    once = dict(lines)
    which = capital(once["which"])
    said = {
        "which": once["which"],
        "Which": which,
        "nouns": once["nouns"],
        "where": once["where"],
        "after_q": f"{which} {once['after']}",
        "before_q": f"{which} {once['before']}",
        "first_q": once["first"],
        "last_q": once["last"],
    }
    told = tuple(text for word, text in lines if word == "told")
    return Scene(POOLS[once["of"]], said, capital(once["title"]), told)


def tell(rng: Random, scene: Scene, words: list[str]) -> Fields:
    """The scene's fields, with the list told in one of many ways.

    `told` goes before a question and ends with a space or a new line, `tells` goes behind one.
    """
    clause = pick(rng, scene.told)
    style = int(rng.random() * 8)
    said = _sentence(scene, clause, style, words)
    return {
        **scene.said,
        "told": f"{scene.title}:\n{_lines(style, words)}\n" if style < 2 else f"{said} ",
        "tells": said,
        "clause": clause.format(enumerate_words(words)),
        "items": ", ".join(words),
    }


def _lines(style: int, words: list[str]) -> str:
    marks = ["- "] * len(words) if style == 0 else [f"{n} " for n in range(1, len(words) + 1)]
    return "\n".join(map(str.__add__, marks, words))


def _sentence(scene: Scene, clause: str, style: int, words: list[str]) -> str:
    if style < 2:
        return f"{scene.title}: {', '.join(words)}."
    if style == 2:
        return f"{scene.title}: {counted(words)}."
    joined = enumerate_words(words)
    if clause.endswith("{}") and style < 5:
        joined = (", then " if style == 3 else ", ").join(words)
    return capital(clause.format(joined)) + "."
