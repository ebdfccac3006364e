"""Are the answers right, worked out again from the text by other means?"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from fractions import Fraction

import pytest
from training.problems import Problem, generate, same_answer

COUNT = 3000
CHAIN = re.compile(r"\d+(?: [-+x/] \d+)+(?: = \d+(?: [-+x/] \d+)*)+")
SOLVED_BY_COUNTING = {"full-boxes"}  # the answer is the number of groups, not the last result
_YEAR = "January February March April May June July August September October November December"
_WEEK = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
MONTHS, DAYS = _YEAR.split(), _WEEK.split()
A_DATE = re.compile(rf"({'|'.join(MONTHS)}) (\d+)")
A_MONTH = re.compile(rf"\b({'|'.join(MONTHS)})\b")
A_COUNT = re.compile(r"(\d+) (?:day|month|hour|minute)s?")
A_DAY = re.compile("|".join(DAYS))


def problems(kind: str, *prefixes: str) -> Iterator[Problem]:
    for split in ("train", "held_out_numbers", "held_out_templates"):
        for problem in generate(split, 9, COUNT, [kind]):
            if not prefixes or problem.template.startswith(prefixes):
                yield problem


def value(expression: str) -> Fraction:
    total = Fraction(0)
    for sign, term in re.findall(r"([-+]?) ?(\d+(?: [x/] \d+)*)", expression):
        first, *rest = re.split(r" ([x/]) ", term)
        product = Fraction(int(first))
        for op, number in zip(rest[::2], rest[1::2], strict=True):
            product = product * int(number) if op == "x" else product / int(number)
        total += -product if sign == "-" else product
    return total


@pytest.mark.parametrize("kind", ["word", "list", "date", "comparison"])
def test_every_equation_holds(kind: str) -> None:
    found = 0
    for problem in problems(kind):
        for chain in CHAIN.findall(problem.worked):
            sides = {value(side) for side in chain.split(" = ")}
            assert len(sides) == 1, (chain, problem)
            found += 1
    assert found > COUNT / 10


def test_the_answer_of_a_word_problem_is_its_last_result() -> None:
    for problem in problems("word"):
        if problem.template in SOLVED_BY_COUNTING:
            continue
        last = CHAIN.findall(problem.worked)[-1].rpartition(" = ")[2]
        assert problem.answer == last, problem
        assert len(CHAIN.findall(problem.worked)) == problem.steps


def test_numbers_stay_small() -> None:
    """Sums below 1000; one factor within the times tables, or a round number."""
    for problem in problems("word"):
        numbers = [int(number) for number in re.findall(r"\d+", problem.worked)]
        assert max(numbers) < 1000
        for left, right in re.findall(r"(\d+) x (\d+)", problem.worked):
            assert min(int(left), int(right)) <= 10, problem
        for _, divisor in re.findall(r"(\d+) / (\d+)", problem.worked):
            assert int(divisor) <= 10, problem


def test_the_answer_of_a_passage_stands_in_its_evidence() -> None:
    for problem in problems("passage"):
        evidence = problem.worked.removeprefix("The text says: ").partition("\nAnswer:")[0]
        assert evidence in problem.question
        assert re.search(rf"\b{re.escape(problem.answer)}\b", evidence), problem
        passage, _, question = problem.question.rpartition(". ")
        assert passage.count(".") >= 1
        assert question.endswith("?")


def test_a_passage_has_one_answer() -> None:
    """Of facts of the same form, only one fits what the question asks by."""
    for problem in problems("passage", "lives-in", "has-job", "likes-food", "plays-music"):
        facts = problem.question.split(". ")[:-1]
        fitting = [fact for fact in facts if problem.answer in fact.split()]
        assert len(fitting) == 1, problem


def calendar(problem: Problem) -> str | None:
    """The answer by the calendar of a year without a leap day."""
    text = problem.question
    dates, days = A_DATE.findall(text), A_DAY.findall(text)
    span = re.search(r"(\d+) days?", text)
    if len(dates) == 1 and not days:
        count = int(span[1]) if span else 1
        start = date(2023, MONTHS.index(dates[0][0]) + 1, int(dates[0][1]))
        end = start + timedelta(count)
        return f"{MONTHS[end.month - 1]} {end.day}"
    if len(dates) == 2 and len(days) == 1:
        (month, first), (_, second) = dates
        start, end = (date(2023, MONTHS.index(month) + 1, int(d)) for d in (first, second))
        return DAYS[(DAYS.index(days[0]) + (end - start).days) % 7]
    if len(days) == 1 and span:
        back = re.search(r"\b(before|ago)\b", text)
        return DAYS[(DAYS.index(days[0]) + (-1 if back else 1) * int(span[1])) % 7]
    return None


def test_dates_agree_with_the_calendar() -> None:
    templates = (
        "date-after",
        "day-after-date",
        "weeks-after-date",
        "weekday-of",
        "weekday-after",
        "weekday-before",
        "weekday-visit",
        "parcel",
        "ship-date",
    )
    checked = 0
    for problem in problems("date", *templates):
        expected = calendar(problem)
        assert expected is not None, problem
        assert problem.answer == expected, problem
        checked += 1
    assert checked > COUNT / 2


def minutes_of_day(text: str) -> list[int]:
    return [int(hour) * 60 + int(minute) for hour, minute in re.findall(r"(\d+):(\d\d)", text)]


def test_times_agree_with_the_clock() -> None:
    for problem in problems("date", "clock-later", "clock-lesson", "show-ends"):
        (start,), (end,) = minutes_of_day(problem.question), minutes_of_day(problem.answer)
        assert f"{end - start} minutes" in problem.question, problem
    for problem in problems("date", "clock-between"):
        start, end = minutes_of_day(problem.question)
        assert problem.answer == str(end - start), problem
    for problem in problems("date", "clock-hours-later"):
        (start,), (end,) = minutes_of_day(problem.question), minutes_of_day(problem.answer)
        assert f"{(end - start) // 60 % 12} hours" in problem.question, problem


def test_months_agree_with_the_year() -> None:
    for problem in problems("date", "month-after", "month-before", "kitten"):
        (month,), (count,) = A_MONTH.findall(problem.question), A_COUNT.findall(problem.question)
        way = -1 if problem.template == "month-before" else 1
        assert problem.answer == MONTHS[(MONTHS.index(month) + way * int(count)) % 12], problem


def items(text: str) -> list[str]:
    """The longest run of words with commas between them."""
    return max((run.split(", ") for run in re.findall(r"\w+(?:, \w+)+", text)), key=len)


EXPECTED: dict[str, Callable[[list[str]], str]] = {
    "alphabet-sort": lambda words: ", ".join(sorted(words)),
    "list-reverse": lambda words: ", ".join(reversed(words)),
    "list-length": lambda words: str(len(words)),
    "longest-word": lambda words: max(words, key=len),
    "shortest-word": lambda words: min(words, key=len),
    "number-sum": lambda words: str(sum(map(int, words))),
    "number-even": lambda words: str(sum(int(word) % 2 == 0 for word in words)),
    "number-next": lambda words: str(2 * int(words[-1]) - int(words[-2])),
    "repeated-word": lambda words: max(words, key=words.count),
}


@pytest.mark.parametrize("template", EXPECTED)
def test_lists_are_sorted_counted_and_turned_around(template: str) -> None:
    found = list(problems("list", template))
    assert len(found) > 20
    for problem in found:
        assert same_answer(problem.answer, EXPECTED[template](items(problem.question))), problem


def test_comparisons_agree_with_the_numbers() -> None:
    """In a question about two people, the one named just before or after the number wins."""
    for problem in problems("comparison", "older-of-two", "taller-of-two", "more-things"):
        told = re.findall(r"([A-Z][a-z]+)(?:,? who)? (?:is|has|with) (\d+)", problem.question)
        sizes = {name: int(number) for name, number in told}
        assert len(sizes) == 2, problem
        least = re.search("younger|shorter|fewer", problem.question)
        assert problem.answer == (min if least else max)(sizes, key=lambda name: sizes[name])
