"""Does an evaluation go on where it ended, and only with what it began with?"""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from moesaic.core.errors import BadFile, ImpossibleSetting
from moesaic.lab.evaluation.journal import Journal
from moesaic.lab.evaluation.results import ItemResult

SETTINGS = {"limit": 3, "splits": ("a", "b"), "form": None}
ONE, TWO = (
    ItemResult("problems", "1", right=True, answer="é"),
    ItemResult("problems", "2", right=False),
)


def kept(folder: Path, *results: ItemResult) -> None:
    journal = Journal(folder, SETTINGS)
    for result in results:
        journal.add(result)
    journal.close()


def found(folder: Path, **changes: object) -> list[ItemResult]:
    journal = Journal(folder, SETTINGS | changes)
    journal.close()
    return list(journal.done.values())


def test_results_are_found_again(tmp_path: Path) -> None:
    kept(tmp_path / "new" / "folder", ONE)
    kept(tmp_path / "new" / "folder", TWO)
    assert found(tmp_path / "new" / "folder") == [ONE, TWO]


def test_a_torn_line_is_dropped(tmp_path: Path) -> None:
    kept(tmp_path, ONE, TWO)
    file = tmp_path / "results.jsonl"
    file.write_bytes(file.read_bytes()[:-5])
    assert found(tmp_path) == [ONE]
    kept(tmp_path, TWO)
    assert found(tmp_path) == [ONE, TWO]


def test_line_breaks_of_other_scripts_do_not_end_a_line(tmp_path: Path) -> None:
    answer = ItemResult("problems", "3", right=False, answer="a\u2028b\u2029c\x85d\r\n")
    kept(tmp_path, answer, ONE)
    assert found(tmp_path) == [answer, ONE]


def test_a_full_disk_is_named_and_costs_one_line(tmp_path: Path) -> None:
    kept(tmp_path, ONE)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = Journal(tmp_path, SETTINGS)
    limit = (tmp_path / "results.jsonl").stat().st_size + 20
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limits[1]))
        with pytest.raises(OSError, match=r"too large: .*results\.jsonl"):
            journal.add(TWO)
        journal.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert found(tmp_path) == [ONE]


def test_a_line_torn_in_a_character_is_dropped(tmp_path: Path) -> None:
    kept(tmp_path, TWO, ONE)
    file = tmp_path / "results.jsonl"
    file.write_bytes(file.read_bytes().rpartition("é".encode()[1:])[0])
    assert found(tmp_path) == [TWO]


def test_other_settings_are_refused_by_name(tmp_path: Path) -> None:
    kept(tmp_path, ONE)
    with pytest.raises(ImpossibleSetting, match="limit was 3 and is 4; form was null and is"):
        Journal(tmp_path, SETTINGS | {"limit": 4, "form": "chat"})
    assert found(tmp_path) == [ONE]


def test_restart_forgets_everything(tmp_path: Path) -> None:
    kept(tmp_path, ONE)
    journal = Journal(tmp_path, SETTINGS | {"limit": 4}, restart=True)
    journal.finish({"score": 1})
    journal.close()
    assert found(tmp_path, limit=4) == []
    Journal(tmp_path, SETTINGS, restart=True).close()
    assert not (tmp_path / "summary.json").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("results.jsonl", '{"task": "a", "item": "1"}\nnonsense\n', "line 2 is no result"),
        ("results.jsonl", "\xff\n", "line 1 is no result"),
        ("settings.json", "{", "is damaged"),
        ("settings.json", "[]", "is damaged"),
    ],
)
def test_damage_is_named(name: str, content: str, message: str, tmp_path: Path) -> None:
    kept(tmp_path)
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    with pytest.raises(BadFile, match=message):
        Journal(tmp_path, SETTINGS)


def test_two_do_not_write_at_once(tmp_path: Path) -> None:
    journal = Journal(tmp_path, SETTINGS)
    with pytest.raises(ImpossibleSetting, match="another evaluation is writing"):
        Journal(tmp_path, SETTINGS, restart=True)
    journal.close()
    Journal(tmp_path, SETTINGS).close()
