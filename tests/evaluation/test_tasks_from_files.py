"""Are files asked and judged as their tasks are defined, whatever some lines look like?"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest
from small_files import exercise, sum_of, write_lines
from training.documents import plain_prompt
from training.problems import generate

from chat_models import talking
from moesaic.core.errors import BadFile, ImpossibleSetting
from moesaic.lab.evaluation.gsm8k_task import gsm8k_items, number_in, read_gsm8k
from moesaic.lab.evaluation.humaneval_task import completed, humaneval_items
from moesaic.lab.evaluation.input_files import digest, read_lines, read_text
from moesaic.lab.evaluation.items import Question, Unusable
from moesaic.lab.evaluation.problem_task import problem_items
from moesaic.lab.evaluation.sandbox import Limits
from moesaic.models.text.tokenizer import Tokenizer

LIMITS = Limits(seconds=2.0)


@cache
def tokenizer() -> Tokenizer:
    return Tokenizer.open(talking().folder)


def asked(question: object) -> str:
    assert isinstance(question, Question)
    return tokenizer().decode(question.prompt, skip_special=False)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("so #### 72", "72"),
        ("#### $1,234.50 in all", "1234.50"),
        ("####-3", "-3"),
        ("#### 18.", "18"),
        ("#### 5\n\nQuestion: more\n#### 6", "5"),
        ("the answer is 72", None),
        ("####", None),
        ("####\n72", "72"),
        ("#### \u22125", "-5"),
        ("#### - 5", "-5"),
        ("#### $18/hour", "18"),
        ("#### 3/4", None),
        ("#### 2^10 = 1024", None),
    ],
)
def test_the_number_after_the_marks(text: str, number: str | None) -> None:
    assert number_in(text) == (None if number is None else Decimal(number))


def test_gsm8k_shows_examples_and_compares_numbers(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "test.jsonl.gz", [sum_of(n, 990) for n in range(12)])
    shots = write_lines(tmp_path / "train.jsonl", ["", "{", *(sum_of(n, n) for n in range(9))])
    items = gsm8k_items(read_gsm8k(file, shots, 8), file, tokenizer(), "plain")
    assert len(items) == 12
    question = items[11]
    assert isinstance(question, Question)
    examples = [
        f"Question: {n} plus {n}?\nAnswer: {n} + {n} = {2 * n}\n#### {2 * n}" for n in range(8)
    ]
    assert asked(question) == "\n\n".join([*examples, "Question: 11 plus 990?\nAnswer:"])
    assert question.stop == ("\nQuestion:",)
    assert question.judge(" 11 + 990 = 1001\n#### 1001").right
    assert question.judge("#### $1,001.00").right
    assert not question.judge("#### 1002").right
    assert "no number" in question.judge("1001").why


def test_gsm8k_in_a_conversation(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "test.jsonl", [sum_of(1, 2), sum_of(3, 4)])
    (item,) = gsm8k_items(read_gsm8k(file, None, 1), file, tokenizer(), "chat")
    turns = ("user\n3 plus 4?", "assistant\n3 + 4 = 7\n#### 7", "user\n1 plus 2?")
    whole = "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns)
    assert asked(item) == whole + "<|im_start|>assistant\n"


def test_examples_from_the_same_file_are_not_asked(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "test.jsonl", [sum_of(n, n) for n in range(5)])
    parts = read_gsm8k(file, None, 2)
    assert [line.number for line in parts.lines] == [1, 2, 3]
    assert [shot.question for shot in parts.shots] == ["3 plus 3?", "4 plus 4?"]
    with pytest.raises(ImpossibleSetting, match=r"8 examples were asked for and .* has 5"):
        read_gsm8k(file, None, 8)


def test_a_question_that_stands_among_the_examples_is_not_asked(tmp_path: Path) -> None:
    """Its answer stands there, too."""
    file = write_lines(tmp_path / "test.jsonl", [sum_of(n, n) for n in range(5)])
    items = gsm8k_items(read_gsm8k(file, file, 2), file, tokenizer(), "plain")
    assert [isinstance(item, Question) for item in items] == [False, False, True, True, True]
    assert isinstance(items[0], Unusable)
    assert "is one of the examples" in items[0].why


def test_why_there_are_no_examples_is_said(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "test.jsonl", [{"question": "?"}])
    with pytest.raises(ImpossibleSetting, match=r"has 0 \(line 1: the field 'answer' is missing\)"):
        read_gsm8k(file, None, 8)
    assert read_gsm8k(write_lines(tmp_path / "none.jsonl", []), None, 8).lines == []


def test_broken_lines_are_named_and_others_asked(tmp_path: Path) -> None:
    lines = [
        sum_of(1, 1),
        {"question": "?"},
        {"question": 3, "answer": "#### 3"},
        {"question": "?", "answer": "three"},
        "{",
        "[]",
        {"question": "half \ud800", "answer": "#### 3"},
        sum_of(2, 2),
    ]
    file = write_lines(tmp_path / "test.jsonl", lines)
    items = gsm8k_items(read_gsm8k(file, None, 0), file, tokenizer(), "plain")
    why = [item.why.removeprefix(f"{file}, ") for item in items if isinstance(item, Unusable)]
    assert why[:5] == [
        "line 2: the field 'answer' is missing",
        "line 3: the field 'question' is 3, expected text",
        "line 4: the field 'answer' has no number after ####",
        "line 5: it is not JSON",
        "line 6: it is not a JSON object",
    ]
    assert why[5] == "line 7: the field 'question' has half of a surrogate pair"
    assert [item.item for item in items if isinstance(item, Question)] == ["line 1", "line 8"]


def test_humaneval_runs_the_tests(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "test.jsonl.gz", [exercise()])
    (item,) = humaneval_items(file, tokenizer(), "plain", LIMITS)
    assert isinstance(item, Question)
    assert asked(item) == exercise()["prompt"]
    assert item.stop == ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
    assert item.judge("    return x + x\n").right
    assert item.judge("    return x * x\n").why == "AssertionError"
    assert item.judge("    return y\n").why.startswith("NameError")
    assert item.judge("This is no code").why.startswith("SyntaxError")


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Sure:\n```python\ndef twice(x):\n    return 2 * x\n```\nIt doubles.", True),
        ("```\ndef twice(x):\n    return int(math.fsum((x, x)))\n```", True),  # the prompt's import
        ("```python\ndef twice(x):\n    return 2 * x", True),  # cut
        ("    return 2 * x", True),
        ("```python3\ndef twice(x):\n    return 2 * x\n```\nDone.", True),
        ("    return _half(4 * x)\n\ndef _half(x):\n    return x // 2", True),
        ("def double(x):\n    return 2 * x", False),  # not what was asked for
        ("I cannot.", False),
    ],
)
def test_code_is_found_in_an_answer(text: str, right: bool, tmp_path: Path) -> None:
    file = write_lines(tmp_path / "test.jsonl", [exercise()])
    (item,) = humaneval_items(file, tokenizer(), "chat", LIMITS)
    assert isinstance(item, Question)
    assert item.judge(text).right is right
    assert "Complete this Python function" in asked(item)
    assert completed("def f():\n", "    pass", "plain", "f") == "def f():\n    pass"


def test_broken_exercises_are_named(tmp_path: Path) -> None:
    changes: list[dict[str, object]] = [{"test": ""}, {"entry_point": "a b"}, {"prompt": None}]
    lines = [exercise(n, **change) for n, change in enumerate(changes)]
    lines += [{"prompt": "x"}, exercise(9), exercise(9)]
    file = write_lines(tmp_path / "test.jsonl", lines)
    items = humaneval_items(file, tokenizer(), "plain", LIMITS)
    why = [item.why.removeprefix(f"{file}, ") for item in items if isinstance(item, Unusable)]
    assert why == [
        "line 1: the field 'test' is \"\", expected text",
        "line 2: the field 'entry_point' is 'a b', expected the name of a function",
        "line 3: the field 'prompt' is null, expected text",
        "line 4: the field 'task_id' is missing",
        "line 6: the task_id 'Test/9' stands in an earlier line, too",
    ]


def test_problems_are_asked_and_judged_as_in_training() -> None:
    for form in ("plain", "chat"):
        items = problem_items(tokenizer(), form, 3)
        splits = ("held_out_numbers", "held_out_templates")
        problems = [problem for split in splits for problem in generate(split, 0, 3)]
        assert [item.group for item in items if isinstance(item, Question)] == [
            split for split in splits for _ in range(3)
        ]
        for item, problem in zip(items, problems, strict=True):
            assert isinstance(item, Question)
            message = [{"role": "user", "content": problem.question}]
            prompt = plain_prompt(problem.question)
            expected = prompt if form == "plain" else tokenizer().render_chat(message)
            assert asked(item) == expected
            assert item.judge(problem.worked).right
            assert not item.judge("Answer: none of these").right
            assert item.judge("hm").why == "it says no answer"


@pytest.mark.parametrize("ending", ["", ".gz", ".xz"])
def test_compressed_files_are_read(ending: str, tmp_path: Path) -> None:
    path = write_lines(tmp_path / f"a.jsonl{ending}", [{"text": "é\u2028x"}, "", {"text": "b"}])
    assert [(line.number, line.text("text")) for line in read_lines(path)] == [
        (1, "é\u2028x"),
        (3, "b"),
    ]


@pytest.mark.parametrize("name", ["a.gz", "a.xz", "a.txt"])
def test_what_cannot_be_read_is_said(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe nonsense")
    with pytest.raises(BadFile, match=r"cannot be decompressed|is not UTF-8"):
        read_text(tmp_path / name)


def test_a_digest_tells_files_apart(tmp_path: Path) -> None:
    one, other = tmp_path / "a", tmp_path / "b"
    one.write_bytes(bytes(3 << 20))
    other.write_bytes(bytes(3 << 20))
    assert digest(one) == digest(other)
    other.write_bytes(bytes((3 << 20) - 1) + b"x")
    assert digest(one) != digest(other)
