"""The little English that templates need: a or an, one or many, lists in words."""

from __future__ import annotations

from collections.abc import Sequence

_IRREGULAR = {
    "children": "child",
    "people": "person",
    "men": "man",
    "women": "woman",
    "mice": "mouse",
    "geese": "goose",
    "fish": "fish",
    "sheep": "sheep",
    "loaves": "loaf",
    "shelves": "shelf",
    "leaves": "leaf",
    "knives": "knife",
    "scarves": "scarf",
    "goldfish": "goldfish",
}
_ES = ("ches", "shes", "xes", "sses", "toes", "goes", "buses")
_VOWEL_BUT_A = ("uni", "use", "euro", "one")
_HOUR = ("hour", "honest")


def singular(plural: str) -> str:
    """Of everyday nouns, also with words before them: "toy cars" -> "toy car"."""
    before, space, noun = plural.rpartition(" ")
    if noun in _IRREGULAR:
        one = _IRREGULAR[noun]
    elif noun.endswith("ies") and noun not in ("cookies", "pies", "movies", "brownies", "ties"):
        one = noun[:-3] + "y"
    elif noun.endswith(_ES):
        one = noun[:-2]
    else:
        assert noun.endswith("s"), f"no singular known of {plural!r}"
        one = noun[:-1]
    return before + space + one


def with_article(noun: str) -> str:
    if noun.startswith(_HOUR):
        return f"an {noun}"
    if noun[0].lower() in "aeiou" and not noun.lower().startswith(_VOWEL_BUT_A):
        return f"an {noun}"
    return f"a {noun}"


def count_noun(count: str, plural: str, one: str) -> str:
    return f"{count} {one if count == '1' else plural}"


def enumerate_words(words: Sequence[str]) -> str:
    """cat, dog and hen"""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]
