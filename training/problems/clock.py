"""Draws of times of day."""

from __future__ import annotations

from random import Random

from training.problems.chance import between
from training.problems.draws import simple
from training.problems.text import Fields


def _time(hour: int, minute: int) -> str:
    return f"{hour}:{minute:02d}"


@simple("time-later", "start minutes how end", "start minutes")
def time_later(rng: Random) -> Fields:
    """Some minutes after a time, never past noon or midnight."""
    hour, minute = between(rng, 1, 10), between(rng, 0, 11) * 5
    minutes = between(rng, 1, 11) * 5
    total = minute + minutes
    how = f"{minute} + {minutes} = {total}."
    if total >= 60:
        how += f" {total} - 60 = {total - 60}, and it is one hour later."
        end = _time(hour + 1, total - 60)
    else:
        how += " That is less than 60, so the hour stays."
        end = _time(hour, total)
    return {"start": _time(hour, minute), "minutes": str(minutes), "how": how, "end": end}


@simple("time-between", "start end how minutes", "start end")
def time_between(rng: Random) -> Fields:
    """Minutes between two times less than an hour apart."""
    hour, minute = between(rng, 1, 10), between(rng, 0, 11) * 5
    minutes = between(rng, 2, 11) * 5
    total = minute + minutes
    if total > 60:
        full = 60 - minute
        how = (
            f"From {_time(hour, minute)} to {_time(hour + 1, 0)}: 60 - {minute} = {full} minutes. "
            f"Then {total - 60} more: {full} + {total - 60} = {minutes}."
        )
    elif total == 60:
        how = f"From {_time(hour, minute)} to the full hour: 60 - {minute} = {minutes}."
    else:
        how = f"The hour is the same. {total} - {minute} = {minutes}."
    end = _time(hour + total // 60, total % 60)
    return {"start": _time(hour, minute), "end": end, "how": how, "minutes": str(minutes)}


@simple("hours-later", "start hours how end", "start hours")
def hours_later(rng: Random) -> Fields:
    """On a clock face: after 12 comes 1."""
    hour, minute, hours = between(rng, 1, 12), between(rng, 0, 11) * 5, between(rng, 2, 11)
    total = hour + hours
    how = f"{hour} + {hours} = {total}."
    if total > 12:
        how += f" After 12 the clock starts again: {total} - 12 = {total - 12}."
        total -= 12
    fields = {"start": _time(hour, minute), "hours": str(hours), "how": how}
    return {**fields, "end": _time(total, minute)}
