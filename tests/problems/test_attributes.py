"""Do comparisons of every attribute come out right, worked out again from their text?"""

from __future__ import annotations

import re
from functools import cache
from itertools import permutations

from training.problems import Problem, generate
from training.problems.attributes import Attribute, family

FAMILIES = ("people", "things", "world", "chains")


@cache
def comparisons() -> list[Problem]:
    return list(generate("train", 21, 9000, ["comparison"]))


def attributes() -> list[Attribute]:
    return [about for name in FAMILIES for about in family(name)]


def of(*ends: str) -> list[Problem]:
    names = {f"{name}-{end}" for name in FAMILIES for end in ends}
    found = [problem for problem in comparisons() if problem.template in names]
    assert len(found) > 50
    return found


def table(problem: Problem) -> dict[str, int]:
    told = re.findall(r"([A-Za-z][A-Za-z0-9 ]*): (\d+)\.", problem.worked)
    return {name: int(number) for name, number in told}


def test_there_are_many_attributes_with_opposites() -> None:
    words = {(about.up.more, about.down.more) for about in attributes()}
    assert len(words) >= 35
    for about in attributes():
        assert len({*about.up, *about.down}) == 6, about
        assert all(say.count("{}") == 1 and "{n}" in say for say in about.says), about


def test_numbers_of_the_solution_stand_in_the_question() -> None:
    for problem in of("two", "most-of-three", "most-of-four", "middle", "second", "gap", "alike"):
        for name, number in table(problem).items():
            assert re.search(rf"\b{number}\b", problem.question), problem
            assert name in problem.question, problem


def test_the_answer_is_at_the_end_that_the_solution_names() -> None:
    for problem in of("most-of-three", "most-of-four"):
        sizes = table(problem)
        end = max if "The largest is" in problem.worked else min
        assert problem.answer == end(sizes, key=lambda name: sizes[name]), problem


def test_middles_seconds_and_orders_follow_the_numbers() -> None:
    for problem in of("middle"):
        sizes = table(problem)
        assert problem.answer == sorted(sizes, key=lambda name: sizes[name])[1], problem
    for problem in of("order-three", "order-four"):
        sizes = table(problem)
        falling = "From large to small" in problem.worked
        order = sorted(sizes, key=lambda name: sizes[name], reverse=falling)
        assert problem.answer == ", ".join(order), problem
    for problem in of("second"):
        sizes = table(problem)
        falling = "From large to small" in problem.worked
        assert problem.answer == sorted(sizes, key=lambda name: sizes[name], reverse=falling)[1]


def orders(problem: Problem) -> list[tuple[str, ...]]:
    """Every order that fits the facts, from the side of the word that is said first."""
    name = "|".join(map(re.escape, problem.values))
    said = rf"\b({name}) [a-z]+(?: up)? ([a-z ]+?) than (?:the )?({name})\b"
    facts = re.findall(said, problem.question)
    assert len(facts) == len(problem.values) - 1, problem
    word = facts[0][1]
    pairs = [(a, b) if this == word else (b, a) for a, this, b in facts]
    every = permutations(problem.values)
    return [order for order in every if all(order.index(a) < order.index(b) for a, b in pairs)]


def test_a_chain_has_one_order_that_fits_all_its_facts() -> None:
    for problem in of("than", "chain", "long-chain", "chain-middle", "chain-of-two"):
        assert orders(problem) == [problem.values], problem
        assert problem.answer in problem.values
    for problem in of("chain-order"):
        assert orders(problem) == [problem.values], problem
        assert problem.answer in (", ".join(problem.values), ", ".join(problem.values[::-1]))


def test_same_or_not_follows_the_numbers() -> None:
    answers = set()
    for problem in of("alike"):
        first, second = table(problem).values()
        assert ("is the same as" in problem.worked) == (first == second), problem
        answers.add(problem.answer)
    assert answers == {"yes", "no"}


def test_yes_means_that_the_solution_says_the_word_asked_for() -> None:
    for problem in of("yes-or-no"):
        word = re.search(r", so .* (?:is|was) ([a-z ]+)\.", problem.worked)
        assert word, problem
        asked = re.search(rf"\b{word[1].split()[-1]} than\b", problem.question)
        asked = asked if word[1] in problem.question else None
        assert problem.answer == ("yes" if asked else "no"), problem
