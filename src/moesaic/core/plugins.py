"""Policies from outside the package: Python files and modules that register policies when they are
imported.

A plugin is named (`--plugin`, `load_plugin`) or installed: a distribution with an entry point in
the group `moesaic.policies`. Installed ones are imported when a name is asked for that is not known
without them, so that they delay nothing else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING

from moesaic.core.errors import BadPlugin, MoesaicError
from moesaic.core.registering import Registering, registering

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "moesaic.policies"
_SUFFIX = ".py"
_loaded: set[str] = set()


def load_plugin(name: str) -> None:
    """Import a plugin, once per process: the path of a Python file, or a module's name."""
    path = Path(name).expanduser()
    is_file = name.endswith(_SUFFIX) or "/" in name or path.is_file()
    key = str(path.resolve()) if is_file else name
    if key in _loaded or (is_file and _is_main(path)):
        return
    if is_file and not path.is_file():
        raise BadPlugin(name, "file", "does not exist; give the path of a Python file")
    before = name in sys.modules
    by = Registering(key, name)
    _import(by, name, (lambda: _run_file(Path(key))) if is_file else (lambda: import_module(name)))
    if not by.undo and not before:
        raise BadPlugin(
            name, "module", "registers no policy: it must call register, as in docs/add-a-policy.md"
        )
    _loaded.add(key)


@cache
def load_installed() -> tuple[str, ...]:
    """Import the plugins that are installed, once; returns what is wrong with some of them. One
    that is broken does not keep others, or policies of the package, from being used."""
    from importlib.metadata import entry_points

    problems = []
    for point in sorted(entry_points(group=GROUP), key=lambda each: each.name):
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            _import(Registering(None, origin), origin, partial(_load, point))
        except MoesaicError as error:
            problems.append(str(error))
    return tuple(problems)


def _load(point: EntryPoint) -> None:
    """An entry point names a module, or a function of one that registers policies."""
    loaded = point.load()
    if callable(loaded):
        loaded()


def _import(by: Registering, name: str, run: Callable[[], object]) -> None:
    """Whatever goes wrong is the plugin's mistake, and then nothing stays registered."""
    try:
        with registering(by):
            run()
        for check in by.checks:
            check()
    except (Exception, SystemExit) as error:
        for undo in by.undo:
            undo()
        raise _bad_plugin(name, error) from error


def _run_file(path: Path) -> ModuleType:
    """Under a name of its own: a plugin called `random.py` must not take the place of a module. Its
    folder comes last where modules are looked for, so that it can import its neighbours."""
    from importlib.machinery import SourceFileLoader
    from importlib.util import module_from_spec, spec_from_loader
    from zlib import crc32

    name = f"moesaic_plugin_{path.stem}_{crc32(str(path).encode()):08x}"
    loader = SourceFileLoader(name, str(path))
    spec = spec_from_loader(name, loader)
    assert spec is not None, "a loader was given"
    module = module_from_spec(spec)
    sys.modules[name] = module  # as an import does: dataclasses and pickle look there
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _is_main(path: Path) -> bool:
    """The script that this process runs has registered its policies already."""
    scripts = (sys.modules.get(name) for name in ("__main__", "__mp_main__"))
    files = (getattr(script, "__file__", None) for script in scripts)
    return any(file is not None and Path(file).resolve() == path.resolve() for file in files)


def _bad_plugin(name: str, error: BaseException) -> BadPlugin:
    if isinstance(error, SyntaxError):
        other = (
            ""
            if error.filename is None or Path(error.filename).name == Path(name).name
            else (f" of {error.filename}")
        )
        return BadPlugin(name, f"line {error.lineno}{other}", f"{error.msg}")
    where = _line(name, error.__traceback__)
    if isinstance(error, ModuleNotFoundError) and error.name == name.partition(".")[0]:
        return BadPlugin(
            name,
            "module",
            "is not installed; give the path of a .py file, or a module that Python finds",
        )
    if isinstance(error, MoesaicError):
        return BadPlugin(name, where or "registration", str(error))
    return BadPlugin(name, where or "import", f"{type(error).__name__}: {error}")


def _line(name: str, trace: TracebackType | None) -> str | None:
    """The last line of the plugin itself on the way to the mistake."""
    found = None
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == Path(name).name:
            found = f"line {trace.tb_lineno}"
        trace = trace.tb_next
    return found
