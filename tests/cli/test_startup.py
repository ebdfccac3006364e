"""Does help come at once, without loading what only work needs?"""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, getrusage

import pytest

from moesaic.cli import command_line
from moesaic.core.folders import cache_folder
from moesaic.core.worker_pool import worker_pool

HEAVY = ("numpy", "numba", "rich", "matplotlib", "multiprocessing", "torch")
CALL = "from moesaic.cli.main import main; main()"
LIBRARY = "import click"
COMMANDS = ("simulate", "compare", "run", "chat", "quality", "dram")
HELPS = [("--help",), *((command, "--help") for command in COMMANDS)]


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_takes_little_more_than_its_library(words: tuple[str, ...]) -> None:
    """Of processor time, and as a ratio within one run: neither other programs nor a slow moment of
    the machine count. Help takes twice what importing click takes; numpy alone takes four times."""
    best = {LIBRARY: float("inf"), CALL: float("inf")}
    for number in range(20):  # a busy machine lengthens some of them
        for code, least in best.items():
            before = _children_s()
            subprocess.run([sys.executable, "-c", code, *words], check=True, capture_output=True)
            best[code] = min(least, _children_s() - before)
        if number >= 4 and best[CALL] < 3 * best[LIBRARY]:
            break
    assert best[CALL] < 3 * best[LIBRARY]


def _children_s() -> float:
    used = getrusage(RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_loads_nothing_heavy(words: tuple[str, ...]) -> None:
    report = "import sys; print('loaded:', *sys.modules)"
    code = f"import atexit; atexit.register(lambda: exec({report!r})); {CALL}"
    done = subprocess.run(
        [sys.executable, "-c", code, *words], check=True, capture_output=True, text=True
    )
    assert "Usage:" in done.stdout
    loaded = done.stdout.rsplit("loaded:", 1)[1].split()
    assert "moesaic.cli.main" in loaded
    assert not set(HEAVY) & set(loaded)


def test_a_full_disk_without_a_name_is_that_of_the_cache() -> None:
    """Compiled code is saved by its compiler, whose errors name no file."""
    said = command_line._error_text(OSError(errno.ENOSPC, "No space left on device"))
    assert said == f"No space left on device: make room on the disk of the cache, {cache_folder()}"


def test_a_killed_worker_leads_to_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def killed(**options: object) -> None:
        with worker_pool(1) as pool:
            pool.submit(signal.raise_signal, signal.SIGKILL).result()

    monkeypatch.setattr(command_line.app, "main", killed)
    with pytest.raises(SystemExit) as ended:
        command_line.run(lambda: None)
    assert ended.value.code == 2
    assert "for lack of memory" in capsys.readouterr().err


def test_a_script_without_a_main_guard_is_named(tmp_path: Path) -> None:
    """Every worker imports the script, which starts the same command again."""
    script = tmp_path / "launcher.py"
    words = ["moesaic", "compare", "--tokens", "8", "--jobs", "2", "--systems", "hybrimoe,fiddler"]
    script.write_text(f"import sys\nsys.argv = {words}\n{CALL}\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: every worker process imports launcher.py, which starts the same")
    assert 'under if __name__ == "__main__":' in last
    assert "memory" not in last


def test_other_failures_of_ours_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(**options: object) -> None:
        raise RuntimeError("ours")

    monkeypatch.setattr(command_line.app, "main", failing)
    with pytest.raises(RuntimeError, match="ours"):
        command_line.run(lambda: None)
