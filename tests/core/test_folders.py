"""Does a folder appear whole or not at all?"""

from __future__ import annotations

from pathlib import Path

import pytest

from moesaic.core.folders import whole_folder


def test_it_appears_at_the_end_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "made"
    with whole_folder(target) as fresh:
        (fresh / "file").write_text("new")
        assert not target.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["made"]
    assert (target / "file").read_text() == "new"


def test_it_replaces_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "made"
    for names in (("a", "b"), ("c",)):
        with whole_folder(target) as fresh:
            for name in names:
                (fresh / name).touch()
    assert [path.name for path in target.iterdir()] == ["c"]
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_leaves_what_was_there(error: type[BaseException], tmp_path: Path) -> None:
    target = tmp_path / "made"
    target.mkdir()
    (target / "old").touch()

    def half() -> None:
        with whole_folder(target) as fresh:
            (fresh / "new").touch()
            raise error

    with pytest.raises(error):
        half()
    assert list(tmp_path.iterdir()) == [target]
    assert [path.name for path in target.iterdir()] == ["old"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize(
    ("name", "done", "left"),
    [("made", False, "old"), ("made", True, "old"), ("new", False, "old"), ("new", True, "new")],
)
def test_an_error_between_the_renames_loses_nothing(
    name: str,
    done: bool,
    left: str,
    error: type[BaseException],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the renaming of `name`, before or after it is `done`; what is `left` there is whole."""
    target = tmp_path / "made"
    target.mkdir()
    (target / "old").touch()
    rename = Path.rename

    def failing(self: Path, where: Path) -> Path:
        if self.name != name:
            return rename(self, where)
        if done:
            rename(self, where)
        raise error

    def replace() -> None:
        with whole_folder(target) as fresh:
            (fresh / "new").touch()
            monkeypatch.setattr(Path, "rename", failing)

    with pytest.raises(error):
        replace()
    assert list(tmp_path.iterdir()) == [target]
    assert [path.name for path in target.iterdir()] == [left]
