"""Does Ctrl-C while the command starts end it without a traceback?"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import moesaic

# Interrupts itself when `sys.argv[1]` is first imported, as a fast hand would.
_INTERRUPTED = """
import os, signal, sys

class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv.pop(1)
sys.meta_path.insert(0, Interrupting())
from moesaic.cli.main import main
main()
"""


def start(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _INTERRUPTED, module, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "module", ["moesaic.cli.command_line", "typing", "click", "moesaic.core.errors"]
)
def test_before_the_command_is_known(module: str) -> None:
    done = start(module, "models")
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


def test_while_the_command_is_imported() -> None:
    done = start("moesaic.cli.info.models", "models")
    assert done.returncode == 130
    assert done.stderr.split() == ["interrupted"]


def test_importing_the_command_line_leaves_the_handler_as_it_was() -> None:
    look = "import signal, moesaic.cli.main as m; print(signal.getsignal(signal.SIGINT).__name__)"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "default_int_handler\n"


def test_a_command_has_the_handler_as_it_was() -> None:
    look = (
        "import signal, moesaic.cli.command_line as line; from moesaic.cli.main import main\n"
        "line.app.main = lambda **_: print(signal.getsignal(signal.SIGINT).__name__)\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "default_int_handler\n"


def test_nothing_but_the_package_is_imported_before_the_handler_is_set() -> None:
    """Each import is time in which Ctrl-C is a traceback. Without `site`, whose `os` is
    there already: what an editable installation imports to find the package is not ours."""
    source = Path(moesaic.__file__).parents[1]
    look = (
        f"import os, sys; sys.path.insert(0, {str(source)!r}); before = set(sys.modules)\n"
        "import moesaic.cli.main\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    words = [sys.executable, "-I", "-S", "-c", look]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["moesaic", "moesaic.cli", "moesaic.cli.main"]


def test_an_ignored_signal_stays_ignored() -> None:
    look = (
        "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "import moesaic.cli.command_line as line; from moesaic.cli.main import main\n"
        "line.app.main = lambda **_: print(signal.getsignal(signal.SIGINT) == signal.SIG_IGN)\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "True\n"
