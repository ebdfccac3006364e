"""Are lists in everyday settings asked about rightly, worked out again from their solutions?"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files

import pytest
from training.problems import Problem, generate
from training.problems.catalog import templates
from training.problems.reader import blocks
from training.problems.scenes import family

ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth")
FAMILIES = ("people", "things", "plans")


@cache
def lists() -> list[Problem]:
    return list(generate("train", 31, 12_000, ["list"]))


def of(*ends: str) -> list[Problem]:
    names = {f"{name}-{end}" for name in FAMILIES for end in ends}
    found = [problem for problem in lists() if problem.template in names]
    assert len(found) > 50
    return found


def words(problem: Problem) -> list[str]:
    return problem.values[0].split(", ")


def test_there_are_many_settings() -> None:
    scenes = [scene for name in FAMILIES for scene in family(name)]
    assert len(scenes) >= 60
    assert len({scene.title for scene in scenes}) == len(scenes)
    for scene in scenes:
        assert all(told.count("{}") == 1 for told in scene.told), scene
        assert len(set(scene.said.values())) == len(scene.said), scene


@pytest.mark.parametrize("end", ["nth", "place", "after", "reverse", "missing", "letters"])
def test_the_question_tells_the_list_in_order(end: str) -> None:
    for problem in of(end):
        told = [rf"\b{re.escape(word)}\b" for word in words(problem)]
        assert re.search(r"[^?]*?".join(told), problem.question, re.DOTALL), problem


def test_ends_are_the_ends() -> None:
    for problem in of("ends"):
        last = re.search(r"The last one is", problem.worked)
        assert problem.answer == words(problem)[-1 if last else 0], problem


def test_places_are_counted_from_the_start() -> None:
    for problem in of("nth"):
        place = re.search(rf"\b({'|'.join(ORDINALS)})\b", problem.question)
        number = re.search(r"(?:number|place) (\d)", problem.question)
        index = int(number[1]) - 1 if number else ORDINALS.index(place[1] if place else "")
        assert problem.answer == words(problem)[index], problem
    for problem in of("place"):
        word = words(problem)[int(problem.answer) - 1]
        assert len(re.findall(rf"\b{word}\b", problem.question)) == 2, problem


def test_neighbors_stand_beside() -> None:
    for end, step in (("after", 1), ("before", -1)):
        for problem in of(end):
            listed = words(problem)
            (beside,) = [w for w in listed if len(re.findall(rf"\b{w}\b", problem.question)) == 2]
            assert problem.answer == listed[listed.index(beside) + step], problem


def test_lists_are_counted_turned_and_shortened() -> None:
    for problem in of("length"):
        assert problem.answer == str(len(words(problem))), problem
    for problem in of("reverse"):
        assert problem.answer == ", ".join(reversed(words(problem))), problem
    for problem in of("remove"):
        left = problem.answer.split(", ")
        assert len(left) == len(words(problem)) - 1
        assert left == [word for word in words(problem) if word in left], problem


def test_what_is_gone_was_there_and_what_is_new_was_not() -> None:
    for problem in of("missing"):
        assert problem.answer in words(problem)
        assert len(re.findall(rf"\b{problem.answer}\b", problem.question)) == 1, problem
    for problem in of("new"):
        assert problem.answer not in words(problem)
        assert len(re.findall(rf"\b{problem.answer}\b", problem.question)) == 1, problem


def test_letters_and_repeats_are_counted() -> None:
    for problem in of("letters"):
        end = max if "The most is" in problem.worked else min
        assert problem.answer == end(words(problem), key=len), problem
    for problem in of("repeated"):
        count = words(problem).count(problem.values[1])
        assert problem.answer in (problem.values[1], str(count)), problem
    for problem in of("by-the-alphabet"):
        assert problem.answer == ", ".join(sorted(words(problem))), problem


def numbers(problem: Problem) -> list[int]:
    return [int(word) for word in words(problem)]


def amount(name: str, worked: str = "") -> list[Problem]:
    found = [p for p in lists() if p.template == f"amount-{name}" and worked in p.worked]
    assert len(found) > 20
    return found


def test_numbers_in_settings_are_told_sorted_and_added() -> None:
    for problem in amount("largest"):
        assert problem.answer == str(max(numbers(problem))), problem
        assert all(re.search(rf"\b{n}\b", problem.question) for n in numbers(problem)), problem
    for problem in amount("smallest"):
        assert problem.answer == str(min(numbers(problem))), problem
    for problem in amount("second", "From large"):
        assert problem.answer == str(sorted(numbers(problem))[-2]), problem
    for problem in amount("sum"):
        assert problem.answer == str(sum(numbers(problem))), problem


def test_numbers_beyond_a_limit_are_counted() -> None:
    for name in ("over", "under"):
        for problem in amount(name):
            (limit,) = re.findall(r"than (\d+)\?", problem.worked)
            assert re.search(rf"\b{limit}\b", problem.question), problem
            over = sum(n > int(limit) for n in numbers(problem))
            count = over if name == "over" else len(numbers(problem)) - over
            assert problem.answer == str(count), problem


def test_what_is_in_both_lists_is_told_twice() -> None:
    for problem in of("in-both"):
        assert len(re.findall(rf"\b{problem.answer}\b", problem.question)) == 2, problem


# Are facts told and asked in many ways, and does every way give the answer?

THEMES = sorted((files("training.problems") / "data" / "relations").iterdir(), key=lambda f: f.name)
FACTS = {t.id for t in templates() if re.search("-(alike|mixed|portrait)$", t.id)}


@cache
def passages() -> list[Problem]:
    return list(generate("train", 4, 6000, ["passage"]))


@pytest.mark.parametrize("theme", THEMES, ids=lambda file: file.name)
def test_every_sentence_of_a_relation_holds_every_answer(theme: object) -> None:
    for name, lines in blocks(theme.read_text()):  # type: ignore[attr-defined]
        texts = [said for word, said in lines if word == "text"]
        answers = [said for word, said in lines if word == "answer"]
        assert len(texts) > 2, name
        assert "{A}" in answers, name
        for answer in answers:
            about = answer.replace("{his} ", "").replace("{", "").replace("}", "")
            assert all(about in text.replace("{", "") for text in texts), (name, answer)


def test_a_passage_put_together_names_whom_it_is_asked_about() -> None:
    found = [problem for problem in passages() if problem.template in FACTS]
    assert len(found) > 500
    for problem in found:
        relation, said = problem.values
        who = said.split()[0]
        assert relation
        assert who in problem.worked, problem
        assert problem.question.count(who) >= 1


def test_questions_begin_in_many_ways() -> None:
    asked: set[str] = set()
    for problem in passages():
        asked.add(problem.question.rpartition(". ")[2].split()[0])
    assert {"Who", "What", "Where", "When", "How", "Which", "Why", "Whose", "To", "By"} <= set(
        asked
    )


def test_there_are_many_passages() -> None:
    assert sum(t.kind == "passage" and not t.held_out for t in templates()) > 100
