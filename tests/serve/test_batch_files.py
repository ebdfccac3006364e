"""Are a batch's files read in order and memory, refused in words, and whole after any end?"""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("msgspec")

from batches import CHAT, TEXT, answers, question, request, written

from moesaic.core.errors import BadFile, ImpossibleSetting
from moesaic.serve.batch.batch_input import BatchInput
from moesaic.serve.batch.batch_output import BatchOutput

SETTINGS = {"model": "small"}


def any_model(name: str | None) -> str | None:
    return f"no model {name}" if name == "other" else None


def opened(path: Path) -> BatchInput:
    return BatchInput(path, any_model)


def order(source: BatchInput, done: bytearray | None = None) -> list[int]:
    marks = bytearray(source.lines + 1) if done is None else done
    return [number for number, _ in source.requests(marks)]


def test_lines_that_begin_alike_follow_each_other(tmp_path: Path) -> None:
    """In a file and beyond what is held at once; of a group, the longest common beginning."""
    documents = ("a" * 300, "b" * 300, "c" * 300)
    prompts = [documents[number % 3] + "xyz"[number // 3 % 3] for number in range(3600)]
    lines = [request(at, TEXT, prompt=text) for at, text in enumerate(prompts)]
    found = [prompts[number - 1] for number in order(opened(written(tmp_path / "in", lines)))]
    assert sorted(found) == sorted(prompts)
    changes = sum(one[0] != other[0] for one, other in pairwise(found))
    assert changes == 2, "each document once"


def test_what_is_done_is_left_out_and_blank_lines_count_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "in"
    texts = [json.dumps(question(number)) for number in range(4)]
    path.write_text("\ufeff" + texts[0] + "\n\n" + "\r\n".join(texts[1:]))  # no end of line
    source = opened(path)
    assert (source.count, source.lines) == (4, 5)
    done = bytearray(6)
    done[3] = 1
    assert sorted(order(source, done)) == [1, 4, 5]


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    text = "x" * 4000
    path = written(tmp_path / "in", [request(at, prompt=f"{at}{text}") for at in range(8000)])
    assert path.stat().st_size > 30 << 20
    tracemalloc.start()
    try:
        read = sum(1 for _ in opened(path).requests(bytearray(8001)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert read == 8000
    assert peak < 20 << 20


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        ([], "has no requests"),
        (["{"], "line 1: it is not JSON"),
        ([{"custom_id": "a"}], "line 1: Object missing required field `method`"),
        ([question(1) | {"custom_id": 3}], "Expected `str`, got `int`"),
        ([question(1) | {"custom_id": ""}], "custom_id is empty"),
        ([question(1) | {"method": "GET"}], "method is 'GET'; it must be 'POST'"),
        ([question(1) | {"url": "/v1/embeddings"}], f"possible are {CHAT}"),
        ([question(1) | {"body": [1]}], "body is no JSON object"),
        ([question(1, model="other")], "no model other"),
        ([question(1), question(2), question(1)], "line 3 has the custom_id 'request-1' of line 1"),
        (["{", question(1), "["], "line 3: Expected `object`, got `array`"),
    ],
)
def test_an_unusable_file_is_refused_with_its_lines(
    tmp_path: Path, lines: list[Any], what: str
) -> None:
    path = tmp_path / "in"
    texts = [each if isinstance(each, str) else json.dumps(each) for each in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    with pytest.raises(BadFile) as refusal:
        opened(path)
    assert what in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_an_input_that_changes_meanwhile_is_noticed(tmp_path: Path) -> None:
    path = written(tmp_path / "in", [question(number) for number in range(3)])
    source = opened(path)
    written(path, [question(number) for number in range(5, 8)])
    with pytest.raises(BadFile, match="was changed"):
        order(source)


def made(tmp_path: Path, **options: Any) -> BatchOutput:
    return BatchOutput(tmp_path / "out", opened(tmp_path / "in"), SETTINGS, **options)


def add(output: BatchOutput, number: int, text: str = "") -> None:
    output.add(number, json.dumps({"id": output.id_of(number), "text": text}).encode())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    written(tmp_path / "in", [question(number) for number in range(9)])
    return tmp_path


def test_a_torn_line_is_cut_off_and_the_rest_is_done(folder: Path) -> None:
    output = made(folder)
    for number in (4, 2):
        add(output, number, "y" * 100_000)
    output.close()
    whole = (folder / "out").read_bytes()
    for tear in (b'{"id": "batch', b"z" * 200_000):
        (folder / "out").write_bytes(whole + tear)
        again = made(folder)
        assert again.count == 2
        assert [number for number, mark in enumerate(again.done) if mark] == [2, 4]
        again.close()
        assert (folder / "out").read_bytes() == whole
    (folder / "out").write_bytes(whole[:10])
    assert made(folder).count == 0


def change_input(folder: Path) -> None:
    written(folder / "in", [question(number) for number in range(8)])


def remove_journal(folder: Path) -> None:
    (folder / "out.journal").unlink()


def damage_journal(folder: Path) -> None:
    (folder / "out.journal").write_text("{")


def change_model(folder: Path) -> None:
    (folder / "out.journal").write_text(
        (folder / "out.journal").read_text().replace("small", "large")
    )


def add_a_line(folder: Path) -> None:
    with (folder / "out").open("a") as out:
        out.write('{"id": "batch_req_0_1"}\n')


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (change_input, "has answers to another input"),
        (remove_journal, "has something else than answers"),
        (damage_journal, "is damaged"),
        (change_model, 'model was "large" and is "small"'),
        (add_a_line, "line 2 is no answer of this batch"),
    ],
)
def test_answers_are_not_mixed_with_others(
    folder: Path, spoil: Callable[[Path], None], what: str
) -> None:
    output = made(folder)
    add(output, 1)
    output.close()
    spoil(folder)
    before = (folder / "out").read_bytes()
    with pytest.raises((ImpossibleSetting, BadFile), match=what):
        made(folder)
    assert (folder / "out").read_bytes() == before
    begun = made(folder, restart=True)
    assert begun.count == 0
    begun.close()
    assert (folder / "out").read_bytes() == b""


def test_two_batches_do_not_write_to_one_file(folder: Path) -> None:
    output = made(folder)
    with pytest.raises(ImpossibleSetting, match="another batch is writing"):
        made(folder)
    output.close()
    made(folder).close()


def test_a_full_disk_leaves_whole_lines(folder: Path) -> None:
    output = made(folder)
    add(output, 1, "y" * 1000)
    _, hard = limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
        with pytest.raises(OSError, match=str(folder / "out")):
            add(output, 2, "y" * 3000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, before)
    assert len(answers(folder / "out")) == 1
    assert (folder / "out").read_bytes().endswith(b"\n")
    add(output, 2)
    output.close()
    assert made(folder).count == 2


_WRITE = """
import json, sys
from pathlib import Path
from moesaic.serve.batch.batch_input import BatchInput
from moesaic.serve.batch.batch_output import BatchOutput
folder = Path(sys.argv[1])
source = BatchInput(folder / "in", lambda name: None)
output = BatchOutput(folder / "out", source, {"model": "small"})
for number, line in source.requests(output.done):
    text = "y" * (1 + 400_000 * (number % 5))
    fields = {"id": output.id_of(number), "custom_id": line.custom_id, "text": text}
    output.add(number, json.dumps(fields).encode())
    print(number, flush=True)
output.close()
"""


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=pytest.mark.long)])
def test_writers_that_are_killed_lose_nothing_and_do_nothing_twice(
    tmp_path: Path, kills: int
) -> None:
    several = 20 * kills
    written(tmp_path / "in", [question(number) for number in range(several)])
    chance = random.Random(kills)
    for _ in range(kills):
        child = subprocess.Popen([sys.executable, "-c", _WRITE, tmp_path], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(chance.randrange(1, 15)):  # then at some point of the next lines
            child.stdout.readline()
        child.kill()
        child.communicate()
        assert child.returncode in (-signal.SIGKILL, 0)
    subprocess.run([sys.executable, "-c", _WRITE, tmp_path], check=True, stdout=subprocess.PIPE)
    found = [each["custom_id"] for each in answers(tmp_path / "out")]
    assert sorted(found) == sorted(f"request-{number}" for number in range(several))
