"""Draws of lists of words: what stands where, what is in it, what is not.

Every solution walks through the list, so that each next word follows from the one before it.
"""

from __future__ import annotations

from random import Random

from training.problems.chance import between, pick, several, shuffled
from training.problems.draws import NamedDraw, limits, maker, simple
from training.problems.grammar import with_article
from training.problems.names import PEOPLE
from training.problems.places import GIVES, counted, places
from training.problems.text import Fields
from training.problems.walks import tallied, until_found, until_gone

CATEGORIES: dict[str, tuple[str, ...]] = {
    category: tuple(words.split())
    for category, words in {
        "animal": "cat dog horse cow goat hen duck pig fox bear wolf lion tiger zebra rabbit "
        "mouse frog snake owl eagle monkey camel whale shark turtle spider bee ant",
        "fruit": "apple pear lemon banana grape cherry fig melon mango kiwi apricot papaya",
        "color": "red blue green yellow black white brown purple pink gray",
        "tool": "hammer saw drill shovel rake wrench ladder axe brush",
        "drink": "milk tea water juice coffee lemonade cocoa soda",
        "vehicle": "car bus train boat plane truck bike van taxi ship tractor rocket",
        "body part": "arm leg hand foot knee elbow nose ear eye chin finger toe",
        "piece of furniture": "table chair bed sofa desk shelf bench lamp closet stool",
    }.items()
}
WORDS = tuple(word for words in CATEGORIES.values() for word in words)
CATEGORY_OF = {word: name for name, words in CATEGORIES.items() for word in words}
PLURAL = {"body part": "body parts", "piece of furniture": "pieces of furniture"}


def _one(fields: Fields, words: list[str]) -> Fields:
    fields["items"] = ", ".join(words)
    return fields


@maker("place-in")
def place_in(pool: str, length: str) -> NamedDraw:
    """The word at a place, a word's neighbors, and the ends. `pool` is words or people."""
    options = WORDS if pool == "words" else tuple(person.name for person in PEOPLE)
    low, high = limits(length)

    def draw(rng: Random) -> Fields:
        words = several(rng, options, between(rng, low, high))
        return _one(places(rng, words), words)

    return NamedDraw(draw, ("items", *GIVES), ("items", "nth", "mid"))


@maker("letters")
def letters(length: str) -> NamedDraw:
    """The longest and the shortest word; both are single."""
    low, high = limits(length)

    def draw(rng: Random) -> Fields | None:
        words = several(rng, WORDS, between(rng, low, high))
        by_length = sorted(words, key=len)
        if len(by_length[0]) == len(by_length[1]) or len(by_length[-1]) == len(by_length[-2]):
            return None
        measured = " ".join(f"{word} has {len(word)} letters." for word in words)
        ends = {"longest": by_length[-1], "shortest": by_length[0], "measured": measured}
        most = {"most": str(len(by_length[-1])), "least": str(len(by_length[0]))}
        return _one({**ends, **most}, words)

    return NamedDraw(
        draw, ("items", "longest", "shortest", "measured", "most", "least"), ("items",)
    )


@maker("alphabet")
def alphabet(pool: str, length: str) -> NamedDraw:
    """First letters all differ, so that they alone decide."""
    options = WORDS if pool == "words" else tuple(person.name for person in PEOPLE)
    low, high = limits(length)

    def draw(rng: Random) -> Fields | None:
        words = several(rng, options, between(rng, low, high))
        if len({word[0] for word in words}) < len(words):
            return None
        ordered = sorted(words)
        fields = {
            "initials": ", ".join(word[0] for word in words),
            "ordered_initials": ", ".join(word[0] for word in ordered),
            "ordered": ", ".join(ordered),
            "earliest": ordered[0],
            "latest": ordered[-1],
        }
        return _one(fields, words)

    gives = ("items", "initials", "ordered_initials", "ordered", "earliest", "latest")
    return NamedDraw(draw, gives, ("items",))


@simple("repeats", "items word times tally total", "items word")
def repeats(rng: Random) -> Fields:
    """One word several times among others."""
    word, *others = several(rng, WORDS, between(rng, 3, 5))
    times = between(rng, 2, 4)
    words = shuffled(rng, [word] * times + others)
    fields = {"word": word, "times": str(times), "tally": tallied(words, word)}
    return _one({**fields, "total": str(len(words))}, words)


@simple("missing", "items shorter gone checked", "items gone")
def missing(rng: Random) -> Fields:
    """Two lists; one word of the first is not in the second."""
    words = several(rng, WORDS, between(rng, 3, 5))
    gone = pick(rng, words)
    rest = shuffled(rng, [word for word in words if word != gone])
    checked = until_gone(words, gone)
    return _one({"shorter": ", ".join(rest), "gone": gone, "checked": checked}, words)


@simple("shared", "items others both checked", "items both")
def shared(rng: Random) -> Fields:
    """Two lists with one word in common."""
    both, *rest = several(rng, WORDS, 7)
    words = shuffled(rng, [both, *rest[:3]])
    others = shuffled(rng, [both, *rest[3 : between(rng, 5, 6)]])
    checked = until_found(words, both)
    return _one({"others": ", ".join(others), "both": both, "checked": checked}, words)


@simple("odd-one", "items category odd other sorted_out", "items")
def odd_one(rng: Random) -> Fields:
    """All words but one are of a category."""
    category, other = several(rng, tuple(CATEGORIES), 2)
    odd = pick(rng, CATEGORIES[other])
    words = shuffled(rng, [odd, *several(rng, CATEGORIES[category], between(rng, 2, 4))])
    said = " ".join(f"{word}: {CATEGORY_OF[word]}." for word in words)
    fields = {"category": with_article(category), "odd": odd, "other": with_article(other)}
    return _one({**fields, "sorted_out": said}, words)


@simple("how-many-of", "items category times sorted_out chosen", "items category")
def how_many_of(rng: Random) -> Fields:
    """Some words are of a category."""
    category, *others = several(rng, tuple(CATEGORIES), 3)
    mine = several(rng, CATEGORIES[category], between(rng, 1, 4))
    rest = [word for other in others for word in several(rng, CATEGORIES[other], 1)]
    words = shuffled(rng, mine + rest)
    said = " ".join(f"{word}: {CATEGORY_OF[word]}." for word in words)
    chosen = [word for word in words if word in mine]
    fields = {"category": PLURAL.get(category, category + "s"), "times": str(len(mine))}
    return _one({**fields, "sorted_out": said, "chosen": counted(chosen)}, words)
