"""Draws of lists in everyday settings (see scenes.py): one template asks about all of a family."""

from __future__ import annotations

from random import Random

from training.problems.chance import between, pick, several, shuffled
from training.problems.draws import NamedDraw, limits, maker
from training.problems.grammar import enumerate_words
from training.problems.places import GIVES, ORDINALS, counted, places
from training.problems.scenes import FIELDS, family, tell
from training.problems.text import Fields
from training.problems.walks import tallied, until_found, until_gone

_NAMED = ("word", "mid", "before", "after")  # questions say "the lamp", but "Ada"


@maker("scene")
def scene_places(name: str, length: str) -> NamedDraw:
    """Ends, places and neighbors, also counted from the end."""
    scenes = family(name)
    low, high = limits(length)

    def draw(rng: Random) -> Fields:
        scene = pick(rng, scenes)
        words = several(rng, scene.pool.words, between(rng, low, high))
        fields = places(rng, words) | tell(rng, scene, words)
        back = between(rng, 1, len(words) - 1)
        for which in _NAMED:
            fields[f"the_{which}"] = scene.pool.subject(fields[which])
        fields["back_nth"] = ORDINALS[back]
        fields["back_word"] = words[-1 - back]
        fields["back_to"] = counted(words[::-1][: back + 1])
        return fields

    gives = (
        *GIVES,
        *FIELDS,
        "back_nth",
        "back_word",
        "back_to",
        *(f"the_{name}" for name in _NAMED),
    )
    return NamedDraw(draw, gives, ("items",))


@maker("scene-change")
def scene_change(name: str) -> NamedDraw:
    """One is gone or new when the list is told again, in another order."""
    scenes = family(name)

    def draw(rng: Random) -> Fields:
        scene = pick(rng, scenes)
        *words, new = several(rng, scene.pool.words, between(rng, 4, 6))
        gone = pick(rng, words)
        fewer = shuffled(rng, [word for word in words if word != gone])
        more = shuffled(rng, [*words, new])
        return tell(rng, scene, words) | {
            "gone": gone,
            "new": new,
            "fewer": enumerate_words(fewer),
            "more": enumerate_words(more),
            "searched_first": until_gone(words, gone),
            "searched_second": until_gone(more, new),
        }

    gives = (*FIELDS, "gone", "new", "fewer", "more", "searched_first", "searched_second")
    return NamedDraw(draw, gives, ("items",))


@maker("scene-shared")
def scene_shared(name: str) -> NamedDraw:
    """Two lists with one in common."""
    scenes = family(name)

    def draw(rng: Random) -> Fields:
        scene = pick(rng, scenes)
        both, *rest = several(rng, scene.pool.words, 7)
        words = shuffled(rng, [both, *rest[:3]])
        others = shuffled(rng, [both, *rest[3 : between(rng, 5, 6)]])
        return tell(rng, scene, words) | {
            "others": enumerate_words(others),
            "both": both,
            "searched": until_found(words, both),
        }

    return NamedDraw(draw, (*FIELDS, "others", "both", "searched"), ("items", "both"))


@maker("scene-repeats")
def scene_repeats(name: str) -> NamedDraw:
    """One of them comes several times."""
    scenes = family(name)

    def draw(rng: Random) -> Fields:
        scene = pick(rng, scenes)
        word, *others = several(rng, scene.pool.words, between(rng, 3, 5))
        times = between(rng, 2, 4)
        words = shuffled(rng, [word] * times + others)
        named = {"word": word, "the_word": scene.pool.subject(word)}
        found = {**named, "times": str(times), "tally": tallied(words, word)}
        return tell(rng, scene, words) | found

    return NamedDraw(draw, (*FIELDS, "word", "the_word", "times", "tally"), ("items", "word"))


@maker("scene-alphabet")
def scene_alphabet(name: str, length: str) -> NamedDraw:
    """First letters all differ, so that they alone decide."""
    scenes = family(name)
    low, high = limits(length)

    def draw(rng: Random) -> Fields | None:
        scene = pick(rng, scenes)
        words = several(rng, scene.pool.words, between(rng, low, high))
        ordered = sorted(words)
        initials = [word[0] for word in ordered]
        if len(set(initials)) < len(words):
            return None
        return tell(rng, scene, words) | {
            "initials": ", ".join(word[0] for word in words),
            "ordered_initials": ", ".join(initials),
            "ordered": ", ".join(ordered),
            "earliest": ordered[0],
            "latest": ordered[-1],
        }

    gives = (*FIELDS, "initials", "ordered_initials", "ordered", "earliest", "latest")
    return NamedDraw(draw, gives, ("items",))


@maker("scene-letters")
def scene_letters(name: str, length: str) -> NamedDraw:
    """The longest and the shortest word; both are single, and no word is two."""
    scenes = [scene for scene in family(name) if not any(" " in word for word in scene.pool.words)]
    low, high = limits(length)

    def draw(rng: Random) -> Fields | None:
        scene = pick(rng, scenes)
        words = several(rng, scene.pool.words, between(rng, low, high))
        short, next_short, *_ = by_length = sorted(words, key=len)
        if len(short) == len(next_short) or len(by_length[-1]) == len(by_length[-2]):
            return None
        return tell(rng, scene, words) | {
            "longest": by_length[-1],
            "shortest": short,
            "measured": " ".join(f"{word} has {len(word)} letters." for word in words),
            "most": str(len(by_length[-1])),
            "least": str(len(short)),
        }

    gives = (*FIELDS, "longest", "shortest", "measured", "most", "least")
    return NamedDraw(draw, gives, ("items",))
