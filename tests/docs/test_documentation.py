"""Does the documentation run? Its Python is executed, its commands and links are checked."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest

from moesaic.cli.main import VERBS
from moesaic.hardware.load import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.cache import caches
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.schedule import schedules
from talking_models import talking

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page: Path) -> None:
    for block in blocks(page, ""):
        for line in block.splitlines():
            words = shlex.split(line, comments=True) if line.startswith("moesaic ") else []
            assert not words or words[1] in VERBS, line


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", ROOT / "docs" / "trace-format.md", ROOT / "docs" / "problems.md"],
    ids=lambda p: p.name,
)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a reader would: in a folder of their own, with a model in it."""
    (tmp_path / "my-model").symlink_to(talking().folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(block, names)


def test_the_policies_of_the_guide_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's files, its registrations, and a run with every plan proved legal."""
    cache, cache_line, schedule, schedule_line = blocks(ROOT / "docs" / "add-a-policy.md", "python")
    for kind, registry, name, source, line in (
        ("cache", caches, "latest_score", cache, cache_line),
        ("schedule", schedules, "alternate", schedule, schedule_line),
    ):
        module = ModuleType(f"moesaic.policies.{kind}.{name}")
        exec(source, module.__dict__)
        assert module.__doc__, "the structure tests ask for it"
        monkeypatch.setitem(sys.modules, module.__name__, module)
        entries = {k: v for k, v in registry._entries.items() if k != name.replace("_", "-")}
        monkeypatch.setattr(registry, "_entries", entries)
        exec(line, {f"{kind}s": registry, "_HERE": f"moesaic.policies.{kind}"})
    model, machine = load_model("olmoe-1b-7b"), load_machine("a6000-xeon5220r")
    policies = PolicySet.of(schedule="alternate", cache="latest-score")
    settings = Settings(model, machine, policies=policies, tokens=4, checked=True)
    result = simulate(settings, choose_workload(None, settings).source)
    assert 0.0 < result.hit_rate < 1.0
