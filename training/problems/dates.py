"""Draws of weekdays, months and dates. No year is named, so February never ends in a problem."""

from __future__ import annotations

from random import Random

from training.problems.chance import between, pick, several
from training.problems.draws import NamedDraw, limits, maker, simple
from training.problems.text import Fields
from training.problems.words import SINGLES

WEEKDAYS = SINGLES["weekday"]
MONTHS = SINGLES["month"]
LENGTHS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_RELATIVE = ("the day before yesterday", "yesterday", "today", "tomorrow", "the day after tomorrow")
_VERBS = ("was", "was", "is", "will be", "will be")
_ASKED = (
    "was the day before yesterday",
    "was yesterday",
    "is today",
    "will tomorrow be",
    "will the day after tomorrow be",
)


def _walk(names: tuple[str, ...], start: int, steps: int) -> list[str]:
    """The names after (or, with negative steps, before) the start, each named on the way."""
    way = 1 if steps > 0 else -1
    return [names[(start + way * n) % len(names)] for n in range(1, abs(steps) + 1)]


def _counted(names: list[str]) -> str:
    """1 Monday, 2 Tuesday: a writer never has to look back to count."""
    return ", ".join(f"{number} {name}" for number, name in enumerate(names, 1))


def _weeks_off(count: int) -> tuple[str, int]:
    """Whole weeks change nothing: taken off one by one, in words."""
    said = ""
    while count > 7:
        said += f"{count} - 7 = {count - 7}. "
        count -= 7
    return said, count


@maker("weekday-steps")
def weekday_steps(count: str) -> NamedDraw:
    low, high = limits(count)

    def draw(rng: Random) -> Fields:
        start, days = between(rng, 0, 6), between(rng, low, high)
        weeks, rest = _weeks_off(days)
        after, before = _walk(WEEKDAYS, start, rest), _walk(WEEKDAYS, start, -rest)
        return {
            "start": WEEKDAYS[start],
            "days": str(days),
            "weeks": weeks,
            "later": _counted(after),
            "earlier": _counted(before),
            "end": after[-1],
            "begin": before[-1],
        }

    gives = ("start", "days", "weeks", "later", "earlier", "end", "begin")
    return NamedDraw(draw, gives, ("start", "days"))


@simple("relative-day", "known_day said asked asked_day move path", "said known_day asked")
def relative_day(rng: Random) -> Fields:
    """If yesterday was Monday, what day will tomorrow be?"""
    known, asked = several(rng, range(5), 2)
    day = between(rng, 0, 6)
    path = _walk(WEEKDAYS, day, asked - known)
    days = "1 day" if len(path) == 1 else f"{len(path)} days"
    return {
        "said": f"{_RELATIVE[known]} {_VERBS[known]}",
        "known_day": WEEKDAYS[day],
        "asked": _ASKED[asked],
        "asked_day": path[-1],
        "move": f"{days} {'on' if asked > known else 'back'}",
        "path": _counted(path),
    }


@simple("same-month", "month a b start days weeks later end", "month a b start")
def same_month(rng: Random) -> Fields:
    """A date and its weekday, and a later date of the same month."""
    month = between(rng, 0, 11)
    a = between(rng, 1, LENGTHS[month] - 2)
    b = between(rng, a + 2, min(LENGTHS[month], a + 20))
    start = between(rng, 0, 6)
    weeks, rest = _weeks_off(b - a)
    after = _walk(WEEKDAYS, start, rest)
    return {
        "month": MONTHS[month],
        "a": str(a),
        "b": str(b),
        "start": WEEKDAYS[start],
        "days": str(b - a),
        "weeks": weeks,
        "later": _counted(after),
        "end": after[-1],
    }


@maker("days-on")
def days_on(count: str) -> NamedDraw:
    """A date some days later, in the same month or the next one."""
    low, high = limits(count)

    def draw(rng: Random) -> Fields | None:
        month, days = between(rng, 0, 11), between(rng, low, high)
        length = LENGTHS[month]
        day = between(rng, 1, length)
        reached = day + days
        steps = f"{day} + {days} = {reached}."
        if reached <= length:
            how, end = (
                f"{steps} {MONTHS[month]} has {length} days, so it is still {MONTHS[month]}.",
                month,
            )
        elif month == 1:
            return None
        else:
            end = (month + 1) % 12
            how = (
                f"{steps} {MONTHS[month]} has {length} days. {reached} - {length} = "
                f"{reached - length}. The next month is {MONTHS[end]}."
            )
            reached -= length
        start, date = f"{MONTHS[month]} {day}", f"{MONTHS[end]} {reached}"
        return {"start": start, "days": str(days), "how": how, "date": date}

    return NamedDraw(draw, ("start", "days", "how", "date"), ("start", "days"))


@maker("month-steps")
def month_steps(count: str) -> NamedDraw:
    low, high = limits(count)

    def draw(rng: Random) -> Fields:
        start, months = between(rng, 0, 11), between(rng, low, high)
        after, before = _walk(MONTHS, start, months), _walk(MONTHS, start, -months)
        return {
            "start": MONTHS[start],
            "months": str(months),
            "later": _counted(after),
            "earlier": _counted(before),
            "end": after[-1],
            "begin": before[-1],
        }

    gives = ("start", "months", "later", "earlier", "end", "begin")
    return NamedDraw(draw, gives, ("start", "months"))


@maker("months")
def months(count: str) -> NamedDraw:
    """Different months in any order: which comes first or last in the year, and all in order."""

    def draw(rng: Random) -> Fields:
        chosen = several(rng, range(12), int(count))
        ordered = sorted(chosen)
        return {
            "items": ", ".join(MONTHS[n] for n in chosen),
            "numbered": " ".join(f"{MONTHS[n]} is month {n + 1}." for n in chosen),
            "ordered": ", ".join(MONTHS[n] for n in ordered),
            "in_order": ", ".join(str(n + 1) for n in ordered),
            "earliest": MONTHS[ordered[0]],
            "latest": MONTHS[ordered[-1]],
            "early": str(ordered[0] + 1),
            "late": str(ordered[-1] + 1),
        }

    gives = ("items", "numbered", "ordered", "in_order", "earliest", "latest", "early", "late")
    return NamedDraw(draw, gives, ("items",))


@simple("dates-of-month", "month items ordered earliest latest", "month items")
def dates_of_month(rng: Random) -> Fields:
    """Three days of one month."""
    month = pick(rng, MONTHS)
    days = several(rng, range(1, 29), 3)
    ordered = sorted(days)
    return {
        "month": month,
        "items": ", ".join(f"{month} {day}" for day in days),
        "ordered": ", ".join(str(day) for day in ordered),
        "earliest": f"{month} {ordered[0]}",
        "latest": f"{month} {ordered[-1]}",
    }


@simple("two-lengths", "first second a b both total", "first second")
def two_lengths(rng: Random) -> Fields:
    """Two months together, but not February."""
    first, second = several(rng, [n for n in range(12) if n != 1], 2)
    a, b = LENGTHS[first], LENGTHS[second]
    fields = {"first": MONTHS[first], "second": MONTHS[second], "a": str(a), "b": str(b)}
    return {**fields, "both": f"{a} + {b} = {a + b}", "total": str(a + b)}


@simple("rest-of-month", "month length a left", "month a")
def rest_of_month(rng: Random) -> Fields:
    month = pick(rng, [n for n in range(12) if n != 1])
    length = LENGTHS[month]
    day = between(rng, 1, length - 2)
    fields = {"month": MONTHS[month], "length": str(length), "a": str(day)}
    return {**fields, "left": str(length - day)}
