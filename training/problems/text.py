"""Templates' text: which words a text asks for, and filling them in.

A field in braces is one of

    {a}           a number or another value of the template
    {A} {B}       different people; {he} {He} {his} {him} are A's pronouns, {he B} those of B
    {things}      a word of the slot (see words.py); {thing} its singular, {things2} another one
    {Things}      the same with a capital letter
    {an thing}    with its article; {An thing} at the start of a sentence
    {c things}    a count with its noun in the right number; any plural noun may stand there
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from random import Random
from string import Formatter

from training.problems.chance import several
from training.problems.grammar import capital, count_noun, singular, with_article
from training.problems.names import PEOPLE
from training.problems.words import ONE_OF, PAIRS, SINGLES

Fields = dict[str, str]
Filler = Callable[[Random, Fields], None]
_PRONOUNS = ("he", "his", "him", "He", "His", "Him")


def fields_of(texts: Iterable[str]) -> list[str]:
    """Names in braces, each once, in the order of their first appearance."""
    found = [name for text in texts for _, name, _, _ in Formatter().parse(text) if name]
    return list(dict.fromkeys(found))


def fillers(texts: Iterable[str], known: Iterable[str]) -> tuple[Filler, ...]:
    """What to do, in order, so that every field of the texts has its value; `known` ones have."""
    wanted = [name for name in fields_of(texts) if name not in set(known)]
    plain = [part for name in wanted for part in _needs(name)]
    people = sorted({name for name in plain if len(name) == 1 and name.isupper()})
    found: list[Filler] = [_cast(people)] if people else []
    slots: dict[str, int] = {}
    for name in plain:
        slot, number = _slot(name)
        if slot in PAIRS or slot in SINGLES:
            slots[slot] = max(slots.get(slot, 1), number)
    found += [_lexical(slot, count) for slot, count in slots.items()]
    found += [_derived(name) for name in wanted if " " in name or _is_capital(name)]
    return tuple(found)


def words_behind(names: Iterable[str], known: Iterable[str]) -> set[str]:
    """People and slots that these fields stand for, one or many alike: {he} stands for A."""
    drawn = set(known)
    plain = {part for name in names if name not in drawn for part in _needs(name)} - drawn
    people = {name for name in plain if len(name) == 1 and name.isupper()}
    slots = {_slot(name) for name in plain}
    return people | {f"{slot}{n}" for slot, n in slots if slot in PAIRS or slot in SINGLES}


def _needs(name: str) -> list[str]:
    """The words a field is made from."""
    if name in _PRONOUNS:
        return ["A"]
    first, _, second = name.partition(" ")
    if second:
        return [second] if first in ("an", "An", *_PRONOUNS) else [first, second]
    return [name[0].lower() + name[1:]] if _is_capital(name) else [name]


def _is_capital(name: str) -> bool:
    return len(name) > 1 and name[0].isupper() and " " not in name and name not in _PRONOUNS


def _slot(name: str) -> tuple[str, int]:
    stem = name.rstrip("0123456789")
    return ONE_OF.get(stem, stem), int(name[len(stem) :] or 1)


def _cast(people: list[str]) -> Filler:
    forms = [_forms(letter) for letter in people]

    def fill(rng: Random, fields: Fields) -> None:
        for form, who in zip(forms, several(rng, range(len(PEOPLE)), len(people)), strict=True):
            fields.update(form[who])

    return fill


@cache
def _forms(letter: str) -> tuple[Fields, ...]:
    """For each person, everything that letter brings along: name and pronouns."""
    found = []
    for person in PEOPLE:
        pronouns = {"he": person.he, "his": person.his, "him": person.him}
        pronouns |= {capital(key): capital(value) for key, value in pronouns.items()}
        fields = {f"{key} {letter}": value for key, value in pronouns.items()}
        found.append({letter: person.name, **fields, **(pronouns if letter == "A" else {})})
    return tuple(found)


def _lexical(slot: str, count: int) -> Filler:
    ends = ["", *(str(number) for number in range(2, count + 1))]
    if slot in SINGLES:
        words = SINGLES[slot]

        def fill_word(rng: Random, fields: Fields) -> None:
            for end, word in zip(ends, several(rng, words, count), strict=True):
                fields[slot + end] = word

        return fill_word
    pairs, one = PAIRS[slot], singular(slot)

    def fill_pair(rng: Random, fields: Fields) -> None:
        for end, (plural, single) in zip(ends, several(rng, pairs, count), strict=True):
            fields[slot + end] = plural
            fields[one + end] = single

    return fill_pair


def _derived(name: str) -> Filler:
    first, _, second = name.partition(" ")
    if not second:
        plain = name[0].lower() + name[1:]
        return lambda _, fields: fields.__setitem__(name, capital(fields[plain]))
    if first in _PRONOUNS:
        return lambda _, fields: None  # came with the person
    if first in ("an", "An"):
        change = capital if first == "An" else str
        return lambda _, fields: fields.__setitem__(name, change(with_article(fields[second])))
    slot, _ = _slot(second)
    if slot in PAIRS:
        one = singular(slot) + second[len(slot) :]
        return lambda _, fields: fields.__setitem__(
            name, count_noun(fields[first], fields[second], fields[one])
        )
    single = singular(second)
    return lambda _, fields: fields.__setitem__(name, count_noun(fields[first], second, single))
