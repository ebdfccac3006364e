"""Does nothing that is judged appear in training, and is every sequence always the same?"""

from __future__ import annotations

import re
from collections import Counter
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import islice

import pytest
from training.problems import KINDS, SPLITS, Problem, generate, numbers
from training.problems.catalog import templates
from training.problems.generate import ONE_IN, is_held_out
from training.problems.reader import blocks
from training.problems.text import fields_of, words_behind

from moesaic.core.errors import ImpossibleSetting, UnknownName


@cache
def training_problems() -> list[Problem]:
    return list(generate("train", 5, 12_000))


@cache
def held_out_numbers() -> list[Problem]:
    return list(generate("held_out_numbers", 5, 12_000))


@cache
def held_out_stories() -> list[Problem]:
    return list(generate("held_out_templates", 5, 3_000))


def identity(problem: Problem) -> tuple[str, tuple[str, ...]]:
    return problem.template, problem.values


def test_no_values_are_in_two_splits() -> None:
    assert not {identity(p) for p in training_problems()} & {
        identity(p) for p in held_out_numbers()
    }
    assert not any(is_held_out(*identity(p)) for p in training_problems())
    assert all(is_held_out(*identity(p)) for p in held_out_numbers())
    assert not {p.question for p in training_problems()} & {p.question for p in held_out_numbers()}


def _wordings(held_out: bool) -> set[str]:
    return {
        " ".join((*telling.passage, question))
        for template in templates()
        for telling in template.tellings
        for question in telling.questions
        if template.held_out == held_out
    }


def test_no_template_is_in_two_splits() -> None:
    trained, held_out = (
        {p.template for p in training_problems()},
        {p.template for p in held_out_stories()},
    )
    assert (
        trained
        == {p.template for p in held_out_numbers()}
        == {t.id for t in templates() if not t.held_out}
    )
    assert held_out == {t.id for t in templates() if t.held_out}
    asks = {side: _wordings(held_out=side) for side in (False, True)}
    assert not asks[False] & asks[True]


def test_every_kind_holds_out_several_templates() -> None:
    held_out = Counter(t.kind for t in templates() if t.held_out)
    assert all(held_out[kind] >= 4 for kind in KINDS)


def _worn(question: str) -> frozenset[tuple[str, ...]]:
    """Three words in a row, wherever they stand; names and numbers are all the same."""
    words = re.findall(r"[A-Za-z']+|\d+", question)
    plain = [
        "#" if w.isdigit() else "X" if n and w[0].isupper() else w.lower()
        for n, w in enumerate(words)
    ]
    return frozenset(zip(plain, plain[1:], plain[2:], strict=False))


def test_no_training_problem_reads_like_a_held_out_template() -> None:
    """Sentences are also put together by code, so texts are compared, not only templates."""
    trained = [(p.template, _worn(p.question)) for p in training_problems()[:6000]]
    for template in {p.template for p in held_out_stories()}:
        asked = [_worn(p.question) for p in held_out_stories() if p.template == template][:4]
        for held_out in asked:
            name, worn = max(
                trained, key=lambda one: len(one[1] & held_out) / len(one[1] | held_out)
            )
            assert len(worn & held_out) / len(worn | held_out) < 0.6, (template, name)


def follows(spec: str, told: set[str]) -> set[str]:
    """What a reader of the told numbers can work out: of c = a + b, any two give the third."""
    known = set(told)
    rules = [re.split(r" = | [-+*/] ", part.strip()) for part in spec.split(",") if "=" in part]
    for _ in rules:
        for rule in rules:
            unknown = {name for name in rule if name not in known and not name.isdigit()}
            known |= unknown if len(unknown) == 1 else set()
    return known


def test_what_decides_is_what_the_question_tells() -> None:
    """A number that is drawn but never told would let one question into both splits."""
    data = files("training.problems") / "data" / "word"
    for file in data.iterdir():
        for name, lines in blocks(file.read_text()):
            spec = dict(lines).get("numbers")
            if spec is None:
                continue  # told by code, which tests of its own look after
            for ask in (said for word, said in lines if word == "ask"):
                told = set(re.findall(r"\{(\w+)", ask))
                if "r 1..<b" in spec:  # quotient and remainder follow from the number divided
                    told |= {"q"}
                assert set(numbers.key(spec)) <= follows(spec, told), (name, ask)


def test_one_in_eight_is_held_out() -> None:
    share = sum(is_held_out("some-template", (str(n),)) for n in range(8000)) / 8000
    assert share == pytest.approx(1 / ONE_IN, rel=0.1)


def test_the_same_seed_gives_the_same_problems() -> None:
    """Recorded: a change here changes what models were trained and judged on."""
    digest = sha256()
    for split in SPLITS:
        for problem in generate(split, 42, 400):
            digest.update(f"{problem.question}\n{problem.worked}\n".encode())
    assert digest.hexdigest()[:16] == "80d8c89f535bf207"


def test_a_longer_run_begins_like_a_shorter_one() -> None:
    assert list(generate("train", 3, 20)) == list(islice(generate("train", 3, 500), 20))
    assert list(generate("train", 3, 20)) != list(generate("train", 4, 20))


def test_kinds_can_be_chosen() -> None:
    assert {p.kind for p in generate("train", 1, 200, ["date", "list"])} == {"date", "list"}
    assert {p.kind for p in training_problems()} == set(KINDS)


def test_mistakes_are_reported() -> None:
    with pytest.raises(UnknownName, match="held_out_numbers"):
        generate("test", 1, 1)
    with pytest.raises(UnknownName, match="passage"):
        generate("train", 1, 1, ["poem"])
    with pytest.raises(ImpossibleSetting):
        generate("train", 1, -1)
    with pytest.raises(ImpossibleSetting):
        generate("train", 1, 1, [])


LEFT_OUT = {  # trained like this: the sentences that tell what decides may be left out
    "drawer-contents",
    "pots-of-color",
    "team-score",
    "things-in-places",
    "three-in-a-list",
    "while-other",
}


def test_a_passage_tells_what_decides() -> None:
    """Facts that are no evidence may be left out: what decides must stand in the others."""
    found = set()
    for template in templates():
        if template.kind != "passage" or template.held_out or "relation" in template.key:
            continue  # relations are told by code, with everything that decides
        needed = words_behind(template.key, template.gives)
        for telling in template.tellings:
            kept = range(len(telling.passage)) if telling.in_order else telling.evidence
            always = [telling.passage[number] for number in kept]
            for question in telling.questions:
                told = words_behind(fields_of((*always, question)), template.gives)
                found |= {template.id} if needed - told else set()
    assert found == LEFT_OUT
