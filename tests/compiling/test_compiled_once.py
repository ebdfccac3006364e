"""Do two processes that need the same code at the same time compile it once?"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from moesaic.compiling.shared_files import SharedFiles

# Numba calls the body of an `overload` while it compiles the caller.
PROGRAM = """
import sys
from pathlib import Path
from time import sleep

from numba.extending import overload

from moesaic.compiling.kept_code import kept

def slow(x): ...

@overload(slow)
def _slow(x):
    sleep(1.5)
    return lambda x: x

def calling(x):
    return slow(x) + 1

def failing(x):
    return slow(x).no_such_name

folder, number = sys.argv[1:]

def meet(where):
    met = Path(folder) / where
    met.mkdir(exist_ok=True)
    (met / number).touch()
    while len(list(met.iterdir())) < 2:
        sleep(0.01)

meet("begun")
function = kept(failing if "failing" in folder else calling, folder)
try:
    assert function(1) == 2
except Exception as error:
    print(type(error).__name__)
else:
    print(sum(function.stats.cache_hits.values()))
meet("ended")  # what a process still held would keep the other from its end
"""


def both_at_once(folder: Path) -> list[str]:
    folder.mkdir()
    program = folder / "program.py"  # numba keeps no code of functions without a file
    program.write_text(PROGRAM)
    both = [
        subprocess.Popen(
            [sys.executable, program, folder, str(number)], stdout=subprocess.PIPE, text=True
        )
        for number in range(2)
    ]
    return sorted(process.communicate(timeout=120)[0].strip() for process in both)


def test_one_compiles_and_the_other_loads(tmp_path: Path) -> None:
    assert both_at_once(tmp_path / "working") == ["0", "1"]


def test_after_a_failure_the_other_goes_on(tmp_path: Path) -> None:
    assert both_at_once(tmp_path / "failing") == ["TypingError", "TypingError"]


def test_other_arguments_are_compiled_in_between(tmp_path: Path) -> None:
    """A function may call itself with other arguments: numba asks again before it has saved."""
    files = SharedFiles(str(tmp_path), "function", "stamp")
    files.compile_alone()
    files.compile_alone()
    files.let_others_compile()
    another = SharedFiles(str(tmp_path), "function", "stamp")
    another.compile_alone()
    another.let_others_compile()
