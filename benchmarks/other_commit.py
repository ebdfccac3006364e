"""Runs a module of `benchmarks` with the package of another commit of this repository."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
_BUILT = ROOT / "build" / "commits"


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """The commit's files in a temporary folder."""
    with TemporaryDirectory(prefix="moesaic-commit-") as folder:
        tree = Path(folder) / "tree"
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "-q", "--detach", tree, commit], check=True)
        try:
            yield tree
        finally:
            subprocess.run([*git, "remove", "--force", tree], check=True)


def command_with(paths: Sequence[Path], module: str, arguments: Sequence[str] = ()) -> list[str]:
    """Runs the module in a process that imports from these folders first. An editable
    installation's finder would come before them."""
    code = (
        "import sys, runpy\n"
        "sys.meta_path[:] = [f for f in sys.meta_path if 'Redirecting' not in repr(f)]\n"
        f"sys.path[:0] = {[str(path) for path in paths]!r}\n"
        f"sys.argv[1:] = {list(arguments)!r}\n"
        f"runpy.run_module({module!r}, run_name='__main__')\n"
    )
    return [sys.executable, "-c", code]


def built_package(commit: str) -> Path:
    """A folder with the commit's package, its native modules included; `commit` may be such a
    folder. Building takes minutes, once for a commit."""
    given = Path(commit)
    if (given / "moesaic" / "__init__.py").is_file():
        return given.resolve()
    asked = ["git", "-C", str(ROOT), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if found.returncode:
        raise SystemExit(f"{commit} is neither a commit nor a folder that contains moesaic/")
    folder = _BUILT / found.stdout.strip()[:12]
    if not folder.is_dir():
        print(f"building {commit} in {folder}", file=sys.stderr, flush=True)
        _build(commit, folder)
    return folder


def _build(commit: str, folder: Path) -> None:
    """Under its name only when it is whole."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent) as unfinished, worktree(commit) as tree:
        options = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-compile")
        subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, "--target", unfinished, str(tree)],
            check=True,
        )
        os.rename(unfinished, folder)
        Path(unfinished).mkdir()  # for the context's end
