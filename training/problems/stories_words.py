"""How a family of stories is worded: a file of data/stories/ with lines like

    who: the bus, the train                            without: the story is about a person
    things: people
    numbers: 10..90                                    what it starts with
    quick: yes                                         over within a day
    gain: <picks/picked/picking> up {n} people at the {place}
    gain: {n} people <get/got> on

A line that begins with <present/past/-ing> has the one the story is about as its subject, so it
can be joined to another; any other line is a clause of its own. (a|b) is one word or the other.
A sharing says behind => how it is asked about. "like: work" stands for the lines of
data/stories/shared/work.txt, which several families say alike.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NamedTuple

from training.problems.grammar import singular
from training.problems.reader import variants
from training.problems.text import fields_of
from training.problems.words import PLURALS

_FOLDER = files("training.problems") / "data" / "stories"
_VERB = re.compile(r"<([^<>/]*)/([^<>/]*)(?:/([^<>/]*))?>")
_SLOTS = {
    "B": {"B"},
    "boxes": {"boxes", "box"},
    "helpers": {"helpers", "helper"},
    "place": {"place"},
    "shop": {"shop"},
    "relative": {"relative"},
}
_NAMES = "start packs gain loss double triple half packs_in packs_out share"
HAPPENINGS = tuple(_NAMES.split(" "))


class Wording(NamedTuple):
    """Everything twice: told in the present and in the past."""

    said: tuple[str, str]
    doing: tuple[str, str]  # "giving 5 to Bob"; only where the subject is left out
    subject_left_out: bool
    question: tuple[str, str]  # what a sharing is asked by, else empty
    find: tuple[str, str]
    slots: tuple[str, ...]  # what must be chosen for it: "B", "boxes", "place"...


@dataclass(frozen=True)
class Family:
    who: tuple[str, ...]  # "the bus"; empty: a person
    things: tuple[tuple[str, str], ...]  # plural and singular
    low: int
    high: int
    quick: bool  # over within a day
    wordings: dict[str, tuple[Wording, ...]]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(kind for kind in HAPPENINGS if kind in self.wordings)


@cache
def families() -> dict[str, Family]:
    texts = [file for file in _FOLDER.iterdir() if file.name.endswith(".txt")]
    return {file.name.removesuffix(".txt"): _family(file) for file in texts}


def _lines(file: Traversable) -> Iterator[tuple[str, str]]:
    for line in file.read_text(encoding="ascii").splitlines():
        word, _, said = line.partition(": ")
        if word == "like":
            yield from _lines(_FOLDER / "shared" / f"{said}.txt")
        else:
            yield word, said


def _family(file: Traversable) -> Family:
    lines = list(_lines(file))
    once = dict(lines)
    things = PLURALS.get(once["things"]) or tuple(once["things"].split(", "))
    wordings: dict[str, tuple[Wording, ...]] = {}
    for word, said in lines:
        if word not in ("who", "things", "numbers", "quick"):
            told = tuple(_wording(" ".join(variant.split())) for variant in variants(said))
            wordings[word] = (*wordings.get(word, ()), *told)
    low, high = once["numbers"].split("..")
    who = tuple(once["who"].split(", ")) if "who" in once else ()
    pairs = tuple((thing, singular(thing)) for thing in things)
    return Family(who, pairs, int(low), int(high), "quick" in once, wordings)


def _wording(text: str) -> Wording:
    said, question, find = (*text.split(" => "), "", "")[:3]
    return Wording(
        _tenses(said),
        _doing(said),
        said.startswith("<"),
        _tenses(question),
        _tenses(find),
        tuple(slot for slot, names in _SLOTS.items() if names.intersection(fields_of([text]))),
    )


def _tenses(text: str) -> tuple[str, str]:
    return _VERB.sub(r"\1", text), _VERB.sub(r"\2", text)


def _doing(text: str) -> tuple[str, str]:
    return _tenses(_VERB.sub(lambda verb: verb[3] or verb[0], text))
