"""Where no cache can be written, is there a safe one instead, and is it announced once?"""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from moesaic.core import caches
from moesaic.core.caches import writable_cache
from moesaic.core.folders import cache_folder

NOBODY = 65534


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files. The configured cache cannot be made: a file is in its way,
    which stops even root."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("MOESAIC_CACHE", str(tmp_path / "file" / "cache"))
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    caches._writable_cache.cache_clear()
    return folder


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"MOESAIC_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/moesaic"),
        ({"HOME": "/c"}, "/c/.cache/moesaic"),
    ],
)
def test_where_the_cache_is_configured(
    variables: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOESAIC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_a_folder_that_can_be_written_is_made_and_not_talked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MOESAIC_CACHE", str(tmp_path / "new" / "cache"))
    assert writable_cache() == tmp_path / "new" / "cache"
    assert list((tmp_path / "new" / "cache").iterdir()) == []
    assert caplog.messages == []


def test_otherwise_a_private_temporary_one_is_announced_once(
    temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "moesaic"):
        found = writable_cache()
        assert writable_cache() == found
    assert found == temporary / f"moesaic-{os.getuid()}"
    assert stat.S_IMODE(found.stat().st_mode) == 0o700
    [said] = caplog.messages
    for part in (str(cache_folder()), str(found), "set MOESAIC_CACHE"):
        assert part in said


def planted_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir(mode=0o700)
    folder.symlink_to(folder.parent / "elsewhere")


def planted_open(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o770)


@pytest.mark.parametrize("plant", [planted_link, planted_open, Path.touch])
def test_what_another_user_may_have_planted_is_not_used(
    plant: object, temporary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(plant)
    plant(temporary / f"moesaic-{os.getuid()}")
    with caplog.at_level(logging.WARNING, "moesaic"):
        assert writable_cache() is None
    assert "every run compiles" in caplog.text


def test_nor_is_a_folder_of_another_user(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_user = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other_user)
    assert writable_cache() is None


def test_nor_a_place_where_others_could_rename_it(temporary: Path) -> None:
    temporary.chmod(0o777)  # without the sticky bit that /tmp has
    assert writable_cache() is None


def test_a_user_without_a_home_gets_a_temporary_one(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an id in a container that the system's list of users does not have."""
    for name in ("MOESAIC_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert writable_cache() == temporary / f"moesaic-{os.getuid()}"


# Imports as root, who can read the interpreter wherever it lies, and goes on as another user.
_AS_NOBODY = """
import os, sys
from moesaic.compiling.kept_code import kept
from moesaic.compiling.code_cache import code_cache
from pathlib import Path
import functions
warm = kept(functions.doubled, None)(1)
os.setgroups([]); os.setgid(int(sys.argv[1])); os.setuid(int(sys.argv[1]))
for _ in range(2):
    function = kept(functions.doubled, code_cache(Path("."), "compiled"))
    print(function(21), sum(function.stats.cache_hits.values()))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_as_another_user_without_a_home() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "functions.py").write_text("def doubled(number):\n    return 2 * number\n")
        folder.chmod(0o1777)
        variables = {
            key: value
            for key, value in os.environ.items()
            if key not in ("XDG_CACHE_HOME", "MOESAIC_CACHE", "NUMBA_CACHE_DIR")
        }
        done = subprocess.run(
            [sys.executable, "-c", _AS_NOBODY, str(NOBODY)],
            cwd=folder,
            env=variables | {"HOME": "/proc/nonexistent", "TMPDIR": name},
            capture_output=True,
            text=True,
            check=False,
        )
        kept = folder / f"moesaic-{NOBODY}"
        assert done.returncode == 0, done.stderr
        assert kept.stat().st_uid == NOBODY
        assert list(kept.rglob("*.nbc"))
    assert done.stdout.split() == ["42", "0", "42", "1"]
    assert done.stderr.count("\n") == 1
    assert str(kept) in done.stderr
