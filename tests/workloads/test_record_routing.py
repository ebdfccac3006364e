"""Are prompts found in files as they are published, and is a recording of answers to them whole?"""

from __future__ import annotations

import gzip
import json
import lzma
from dataclasses import fields
from pathlib import Path

import pytest
from benchmarks.marked_page import put
from benchmarks.record_routing import LOOP, PROFILE_TOKENS, main, repeating
from benchmarks.record_routing_docs import main as write_docs
from benchmarks.record_routing_prompts import BadPrompts, Prompt, name_of, read_prompts

from chat_models import talking
from moesaic.lab.simulate.settings import Settings
from moesaic.workloads.domains import domains_of
from moesaic.workloads.source import open_trace
from moesaic.workloads.stats.phases import totals

RECORDS = [
    ({"question": "How many?", "answer": "3"}, Prompt("How many?", "some")),
    ({"task_id": "0", "prompt": "def f():"}, Prompt("def f():", "some")),
    ({"category": "math", "turns": ["First?", "Then?"]}, Prompt("First?", "some/math")),
    ({"instruction": "Sort.", "input": "3, 1"}, Prompt("Sort.\n3, 1", "some")),
    ({"instruction": "Greet.", "input": ""}, Prompt("Greet.", "some")),
]


def test_records_of_every_kind(tmp_path: Path) -> None:
    records = [record for record, _ in RECORDS]
    expected = [prompt for _, prompt in RECORDS]
    lines = "\n".join(map(json.dumps, records)).encode()
    (tmp_path / "some.jsonl.gz").write_bytes(gzip.compress(lines))
    assert read_prompts(str(tmp_path / "some.jsonl.gz"), 0) == expected
    (tmp_path / "some.json").write_text(json.dumps(records))
    assert read_prompts(str(tmp_path / "some.json"), 0) == expected
    (tmp_path / "some.csv").write_text('act,prompt\n"Poet","Write, please."\n')
    assert read_prompts(str(tmp_path / "some.csv"), 0) == [Prompt("Write, please.", "some")]


def test_a_text_is_begun_with_its_paragraphs(tmp_path: Path) -> None:
    text = f" = Title = \n{'word ' * 100}\n short \n"
    (tmp_path / "wiki.txt.xz").write_bytes(lzma.compress(text.encode()))
    (prompt,) = read_prompts(str(tmp_path / "wiki.txt.xz"), 0)
    assert not prompt.chat
    assert prompt.text.startswith("word word")
    assert 200 <= len(prompt.text) <= 400


def test_problems_have_their_kind_and_come_again() -> None:
    found = read_prompts("problems", 3)
    assert found == read_prompts("problems", 3)
    assert len({prompt.domain for prompt in found}) >= 5
    assert name_of("somewhere/gsm8k_test.jsonl.gz") == "gsm8k_test"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": 1}', "record 1: has none of the fields question"),
        ("a.jsonl", b"[1]", "record 1: must be an object"),
        ("a.jsonl", b"{", "cannot be read as jsonl"),
        ("a.jsonl", b"\n", "there is no prompt in it"),
        ("a.json", b"3", "cannot be read as json"),
        ("a.pdf", b"x", "must end in"),
        ("a.jsonl.gz", b"x", "cannot be read"),
        ("a.txt", b"\xff\xff", "cannot be read"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadPrompts, match=message):
        read_prompts(str(tmp_path / name), 0)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Answers of a model that knows nothing: `some` in chat form, `plain` gone on with."""
    folder = tmp_path_factory.mktemp("recorded")
    lines = [{"category": f"c{n % 2}", "prompt": "why " * (2 + n)} for n in range(6)]
    lines.append({"category": "c9", "prompt": "too long " * 400})
    (folder / "some.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (folder / "plain.txt").write_text("The router of a mixture of experts rests. " * 6)
    words = ("--tokens", "12", "--answer-tokens", "5", "--prompt-tokens", "300")
    sources = (str(folder / "some.jsonl"), str(folder / "plain.txt"))
    out = folder / "out"
    assert main(["--model", str(talking().folder), "--out", str(out), *words, *sources]) == 0
    return out


def test_a_recording_has_prompts_answers_and_domains(recorded: Path) -> None:
    model = talking().folder.name
    names = {"some.moet", "plain.moet", "all.moet", f"{model}.moet"}
    assert {path.name for path in recorded.iterdir()} == names
    some, plain, both = (open_trace(recorded / f"{n}.moet") for n in ("some", "plain", "all"))
    assert set(domains_of(some.header)) <= {"some/c0", "some/c1"}
    assert len(domains_of(some.header)) == totals(some)["documents"]
    assert (some.header.model, some.header.synthetic) == (model, False)
    assert some.header.metadata["answer_tokens_most"] == 5
    found = totals(both)
    assert found["tokens"] == totals(some)["tokens"] + totals(plain)["tokens"]
    assert found["prefill_tokens"] > found["decode_tokens"] > 0


def test_the_page_gets_its_tables_and_its_picture(recorded: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    marks = ("side by side", "by source")
    page.write_text("".join(f"# {m}\n<!-- {m} -->\nstale\n<!-- end of {m} -->\n" for m in marks))
    assert write_docs(["--ours", str(recorded), "--page", str(page)]) == 0
    text = page.read_text()
    model = talking().folder.name
    assert f"|  | {model} prefill | {model} decode |" in text
    assert "|  | plain | some |" in text
    assert "stale" not in text
    assert (tmp_path / "page.svg").stat().st_size > 10_000
    again = put(put("a\n<!-- m -->\nb\n<!-- end of m -->\nc", "m", "new"), "m", "newer")
    assert again == "a\n<!-- m -->\nnewer\n<!-- end of m -->\nc"
    page.write_text("no marks")
    assert write_docs(["--ours", str(recorded), "--page", str(page)]) == 2


def test_the_introduction_is_as_long_as_runs_look_at() -> None:
    defaults = {field.name: field.default for field in fields(Settings)}
    assert defaults["profile_tokens"] == PROFILE_TOKENS


def test_tokens_in_loops_are_counted() -> None:
    once = list(range(20))
    assert repeating(once) == 0
    assert repeating([*once, *once]) == 20 - LOOP + 1
    assert repeating(once[: LOOP - 1]) == 0


def test_a_mistake_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "absent.jsonl"), "--model", str(talking().folder)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("sources", [["a/x.jsonl", "b/x.json"], ["all.txt"]])
def test_no_recording_takes_anothers_place(
    sources: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--model", str(talking().folder), *sources]) == 2
    assert "rename a source" in capsys.readouterr().err
