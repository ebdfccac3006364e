"""Can policies come from outside the package, and is a mistake in them said in words?"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command import SMALL, refused, run, run_json

from moesaic.core.errors import BadPlugin
from moesaic.core.plugins import load_plugin
from moesaic.policies.cache import caches
from moesaic.policies.compiled import compiled
from moesaic.policies.gate import gates
from moesaic.policies.layout import layouts
from moesaic.policies.prefetch import prefetches
from moesaic.policies.schedule import schedules
from moesaic.policies.systems import EVERY_SYSTEM

CACHE = """
from neighbour import NAME
from moesaic.policies.cache import caches
from moesaic.policies.cache.base import Cache

class Latest(Cache):
    def observe(self, routing):
        for ranked, scores in zip(routing.ranked, routing.scores, strict=True):
            self.values[routing.layer, ranked] = scores

caches.register(NAME, Latest, "the highest latest score")
"""
EVERY_KIND = """
from moesaic.policies.cache.classic import Lru
from moesaic.policies.gate.base import Full
from moesaic.policies.layout.base import Striped
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.policy_set import REGISTRIES
from moesaic.policies.prefetch.next_layer import NoPrefetch
from moesaic.policies.schedule.base import Schedule, served_as
from moesaic.policies.systems import register_system
from moesaic.policies.timelines import ON_CPU, ON_GPU, READY

class Mine(Schedule):
    def assign(self, work):
        ready = work.table[READY, : work.n] >= 0
        return served_as(work, [ON_GPU if here else ON_CPU for here in ready])

own = {"cache": Lru, "gate": Full, "layout": Striped, "prefetch": NoPrefetch, "schedule": Mine}
for kind, policy in own.items():
    parameters = () if kind != "cache" else REGISTRIES["cache"].entry("lru").parameters
    REGISTRIES[kind].register(f"my-{kind}", policy, f"a {kind} of my own", parameters)
register_system("my-own", "all of them", PolicySet.of(**{kind: f"my-{kind}" for kind in own}))
"""


@pytest.fixture
def plugin(own_policies: None, tmp_path: Path) -> Path:
    """A file that imports one beside it."""
    (tmp_path / "neighbour.py").write_text('NAME = "latest"\n')
    file = tmp_path / "my_cache.py"
    file.write_text(CACHE)
    return file


def test_a_plugin_is_listed_with_its_origin(plugin: Path) -> None:
    listed = run_json("policies", "--plugin", plugin)["caches"]
    assert listed["latest"]["summary"] == "the highest latest score"
    assert listed["latest"]["origin"] == str(plugin)
    assert listed["lru"]["origin"] == "moesaic"
    assert "my_cache.py" in run("policies", "--plugin", plugin).out.replace("\n", "")


def test_every_kind_and_a_system_can_come_from_a_plugin(own_policies: None, tmp_path: Path) -> None:
    file = tmp_path / "kinds.py"
    file.write_text(EVERY_KIND)
    load_plugin(str(file))
    for registry in (caches, gates, layouts, prefetches, schedules):
        assert registry.origin(f"my-{registry.kind}") == str(file)
    done = run_json("simulate", *SMALL, "--plugin", file, "--policies", "my-own", "--check")
    assert done["policies"]["schedule"] == "my-schedule"
    assert f"--plugin {file}" in done["command"]


def test_workers_import_the_plugin(plugin: Path) -> None:
    rows = run_json(
        "compare", *SMALL, "--jobs", 2, "--plugin", plugin, "--caches", "latest,lru",
        "--prefetches", "none",
    )  # fmt: skip
    assert [row["system"] for row in rows] == ["best-split+latest+none", "best-split+lru+none"]
    assert all("latency_s" in row for row in rows)


MISTAKES = {
    "x = = 3": "line 1: invalid syntax",
    "print(absent)": "line 1: NameError: name 'absent' is not defined",
    "x = 3": "registers no policy",
    "import sys\nsys.exit(1)": "line 2: SystemExit",
    "from moesaic.policies.cache import caches\ncaches.register('lru', object, 'x')": (
        "line 2: cache 'lru' is registered already, by moesaic: choose another name"
    ),
    "from moesaic.policies.cache import caches\ncaches.register('mine', dict, 'x')": (
        "dict must be a subclass of moesaic.policies.cache.base.Cache"
    ),
    CACHE.replace("from neighbour import NAME", "NAME = 'n'").replace(
        "(self, routing)", "(self)"
    ): ("Latest.observe must take (self, routing), takes (self)"),
    "from moesaic.policies.schedule import schedules\n"
    "from moesaic.policies.schedule.base import Schedule\n"
    "schedules.register('mine', type('Mine', (Schedule,), {}), 'x')": "Mine must define assign",
    "from moesaic.policies.gate import gates\nfrom moesaic.policies.gate.base import Full\n"
    "class Mine(Full):\n    def __init__(self): ...\ngates.register('mine', Mine, 'x')": (
        "Mine is called with (top_k), but takes ()"
    ),
}


@pytest.mark.parametrize(("text", "said"), MISTAKES.items(), ids=range(len(MISTAKES)))
def test_a_broken_plugin_is_refused_with_a_message(
    own_policies: None, tmp_path: Path, text: str, said: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(text)
    known = {kind: list(kind) for kind in (caches, gates, schedules)}
    with pytest.raises(BadPlugin) as caught:
        load_plugin(str(file))
    assert said in str(caught.value)
    assert str(file) in str(caught.value)
    assert {kind: list(kind) for kind in known} == known, "nothing stays registered"


@pytest.mark.parametrize("command", ["simulate", "compare", "run", "chat", "plan", "policies"])
def test_a_missing_plugin_ends_a_command_with_one_line(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(monkeypatch, capsys, command, "--plugin", "absent.py")
    assert said == (
        "error: plugin 'absent.py': file: does not exist; give the path of a Python file\n"
    )


def moesaic(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-c", "from moesaic.cli.main import main; main()", *words]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(call, env=environment, capture_output=True, text=True, check=False)


def distribution(folder: Path, name: str, value: str) -> None:
    """As an installer leaves one behind."""
    info = folder / f"{name}-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[moesaic.policies]\n{name} = {value}\n")


def test_installed_plugins_are_found_and_help_does_not_import_them(plugin: Path) -> None:
    folder = plugin.parent
    plugin.write_text("import sys; print('imported', file=sys.stderr)\n" + CACHE)
    distribution(folder, "my-caches", "my_cache")
    distribution(folder, "broken", "nowhere_to_be_found")
    listed = moesaic(folder, "policies", "--json")
    assert json.loads(listed.stdout)["caches"]["latest"]["origin"] == "my-caches 1.2"
    assert "warning: plugin 'broken 1.2': import: ModuleNotFoundError" in listed.stderr
    helped = moesaic(folder, "simulate", "--help")
    assert (helped.returncode, helped.stderr) == (0, "")
    unknown = moesaic(folder, "simulate", "--cache", "latst", "--tokens", "8")
    assert unknown.returncode == 2
    assert "Did you mean 'latest'?" in unknown.stderr
    assert "Not loaded: plugin 'broken 1.2'" in unknown.stderr


def test_workers_find_an_installed_plugin(plugin: Path) -> None:
    distribution(plugin.parent, "my-caches", "my_cache")
    words = ("compare", *SMALL, "--jobs", "2", "--caches", "latest,lru", "--prefetches", "none")
    done = moesaic(plugin.parent, *words, "--json")
    assert done.returncode == 0, done.stderr
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    assert all("latency_s" in row for row in rows)


def test_code_from_outside_the_package_is_not_kept_on_disk() -> None:
    """What is kept is found by the package's sources: an edited plugin would go on as it was."""

    def twice(x: int) -> int:
        return 2 * x

    made: Any = compiled(twice)
    assert made(21) == 42
    assert type(made._cache).__name__ == "NullCache"


def test_systems_of_plugins_go_with_them(own_policies: None, tmp_path: Path) -> None:
    file = tmp_path / "kinds.py"
    file.write_text(EVERY_KIND + "\nraise ValueError('after all')\n")
    with pytest.raises(BadPlugin, match="ValueError: after all"):
        load_plugin(str(file))
    assert "my-own" not in EVERY_SYSTEM
    assert "my-cache" not in caches
