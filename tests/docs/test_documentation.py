"""Does the documentation run? Its Python is executed, its commands and links are checked."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from importlib.resources import files
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import pytest
from benchmarks.what_runs import updated
from click.testing import CliRunner

import moesaic
from chat_models import talking
from moesaic.cli.command_line import COMMANDS, app
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.parameter import Parameter
from moesaic.core.registry import Registry
from moesaic.core.routing import ExpertId
from moesaic.hardware.machine_reader import load_machine
from moesaic.lab.simulate.settings import Settings
from moesaic.lab.simulate.simulation import simulate
from moesaic.lab.simulate.workload import choose_workload
from moesaic.model_info.model_zoo import load_model
from moesaic.policies.policy_choice import policy
from moesaic.policies.policy_set import PolicySet
from moesaic.policies.schedule import schedules

ROOT = Path(__file__).parents[2]
BEGINNERS = ("getting-started", "generating", "python")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_to_headings(page: Path) -> None:
    for file, heading in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        target = page.parent / file if file else page
        assert heading in anchors(target), f"{file}#{heading}"


# Guides that make a file of the reader's own, which they name.
_OF_THE_READER = {
    "src/moesaic/policies/gate/fewer.py",
    "src/moesaic/policies/gate/second_look.py",
    "src/moesaic/policies/schedule/near_data.py",
    "src/moesaic/policies/schedule/near_each.py",
}


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    """Relative to the repository, the package or the native sources."""
    roots = (ROOT, ROOT / "src" / "moesaic", ROOT / "native")
    named = re.findall(r"`(\w+(?:/\w+)+\.(?:py|cpp|h|cu|toml))`", page.read_text())
    for path in set(named) - _OF_THE_READER:
        assert any((root / path).exists() for root in roots), path


def anchors(page: Path) -> set[str]:
    """As GitHub names them: words of the heading, joined by hyphens."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in plain}


def test_the_tables_of_what_runs_are_the_registries() -> None:
    page = (ROOT / "README.md").read_text()
    assert updated(page) == page, "python -m benchmarks.what_runs writes them"
    assert "| `qwen3_moe` | yes | `qwen3moe` | qwen3-30b-a3b" in page
    assert "| `qwen3_5_moe`, `qwen3_5_moe_text` | yes |" in page, "as published files have it"


def test_the_readme_says_which_commands_have_no_json() -> None:
    context = click.Context(app)
    commands = {name: app.get_command(context, name) for name in COMMANDS}
    without = [
        name
        for name, command in commands.items()
        if command is not None
        and not isinstance(command, click.Group)
        and not any("--json" in option.opts for option in command.params)
    ]
    *names, last = [f"`{name}`" for name in sorted(without, reverse=True)]
    said = f"{', '.join(names)} and {last}"
    assert f"`--json` works on every command but {said};" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_and_their_options_exist(page: Path) -> None:
    """In blocks and in sentences."""
    lines = "".join(blocks(page, "")).replace("\\\n", " ").splitlines()
    found = [*lines, *re.findall(r"`(moesaic [^`\n]+)`", page.read_text())]
    for line in found:
        words = shlex.split(line, comments=True) if line.startswith("moesaic ") else []
        if words and not words[1].isupper() and "[OPTIONS]" not in words:
            assert unknown_words(words[1:]) == [], line


def unknown_words(words: list[str]) -> list[str]:
    """What no command is called, or no option of the one that is."""
    command: click.Command | None = app
    context = click.Context(app)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        name, *words = words
        group, command = command, None
        if name in group.list_commands(context):
            command = group.get_command(context, name)
        if command is None:
            return [name]
        context = click.Context(command, info_name=name, parent=context)
    assert command is not None
    known = {"-h", "--help"}
    for option in command.get_params(context):
        known |= {*option.opts, *option.secondary_opts}
    options = [word.partition("=")[0] for word in words if re.match("--?[a-z]", word)]
    return [option for option in options if option not in known]


def test_unknown_words_are_found() -> None:
    assert unknown_words(["rum", "-p", "Hello"]) == ["rum"]
    assert unknown_words(["trace", "inform", "FILE"]) == ["inform"]
    assert unknown_words(["trace", "info", "FILE", "--max-token=3"]) == ["--max-token"]
    assert unknown_words(["run", "-p", "a - b", "--max-tokens", "8"]) == []


def test_every_page_is_in_the_index_once() -> None:
    index = ROOT / "docs" / "README.md"
    listed = re.findall(r"^- \[[^]]+\]\(([\w-]+\.md)\)", index.read_text(), re.M)
    pages = [page.name for page in index.parent.glob("*.md") if page != index]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize(
    "page",
    [
        ROOT / "README.md",
        *(
            ROOT / "docs" / f"{name}.md"
            for name in (
                "getting-started",
                "trace-format",
                "problems",
                "dram",
                "generating",
                "python",
            )
        ),
    ],
    ids=lambda p: p.name,
)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a reader would: in a folder of their own, with a model in it."""
    (tmp_path / "my-model").symlink_to(talking().folder)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(page, "python"):
        exec(block, names)


@pytest.mark.parametrize(
    "page",
    [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in BEGINNERS)],
)
def test_beginners_import_public_names_only(page: str) -> None:
    """What these pages show works with `from moesaic import` alone."""
    for block in blocks(ROOT / page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.Import):
                assert not [n.name for n in node.names if n.name.startswith("moesaic.")]
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("moesaic"):
                assert node.module == "moesaic", node.module
                assert {name.name for name in node.names} <= set(moesaic.__all__)


def test_the_page_of_public_names_has_all_of_them() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    assert sorted(re.findall(r"^\| `(\w+)` \|", page, re.M)) == sorted(moesaic.__all__)


def register(
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    registry: Registry[Any],
    name: str,
    source: str,
    line: str,
) -> None:
    """A guide's file and its registration, for one test."""
    module = ModuleType(f"moesaic.policies.{kind}.{name}")
    exec(source, module.__dict__)
    assert module.__doc__, "the structure tests ask for it"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    entries = {k: v for k, v in registry._entries.items() if k != name.replace("_", "-")}
    monkeypatch.setattr(registry, "_entries", entries)
    package = {f"{kind}s": registry, "_HERE": f"moesaic.policies.{kind}"}
    exec(line, {**package, "Parameter": Parameter})


def test_the_device_of_the_guide_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's description, schedule and run: the third device computes what lies in it."""
    page = ROOT / "docs" / "add-a-device.md"
    (more,) = blocks(page, "toml")
    schedule, line, run = blocks(page, "python")
    known = (files("moesaic.hardware") / "data" / "h100-xeon8470.toml").read_text()
    (tmp_path / "my.toml").write_text(f"{known}\n{more}")
    monkeypatch.chdir(tmp_path)
    register(monkeypatch, "schedule", schedules, "near_data", schedule, line)
    names: dict[str, Any] = {}
    exec(run, names)
    machine, placed = names["machine"], set(names["placed"])
    assert machine.lanes["ndp"].worked_ns > 0
    assert machine.lanes["gpu"].worked_ns > 0
    assert machine.memory.located[names["dimm"]].sum() == len(placed), "they still lie there"
    devices = {device.name for device in machine.topology.devices}
    assert devices == {"gpu", "cpu", "ndp"}
    for routed in islice(names["workload"](names["settings"], names["source"]), 2):
        machine.begin(routed.step, routed.layer)
        for layer in range(names["model"].num_moe_layers):
            routing = machine.route(layer)
            plan = names["brain"].decide(routing, machine.view(layer))
            active = {ExpertId(layer, int(e)) for e in routing.experts.ravel()}
            assert {ExpertId(layer, e) for e in plan.queues["ndp"]} == active & placed
            names["brain"].look_ahead()
            names["brain"].learn(routing, machine.run(plan))
        machine.finish()


@pytest.fixture
def guide_plugin(own_policies: None, tmp_path: Path) -> Path:
    file = tmp_path / "my_policies.py"
    file.write_text(blocks(ROOT / "docs" / "add-a-policy.md", "python")[0])
    return file


def test_the_plugin_of_the_guide_works(guide_plugin: Path) -> None:
    """The guide's file, its registrations, and a run with every plan proved legal."""
    words = ["policies", "--plugin", str(guide_plugin), "--json"]
    listed = json.loads(CliRunner().invoke(app, words, catch_exceptions=False).stdout)
    assert listed["caches"]["fading-score"]["origin"] == str(guide_plugin)
    assert listed["caches"]["lru"]["origin"] == "moesaic"
    assert listed["systems"]["my-system"]["schedule"] == "alternate"
    hits = {
        cache: _hit_rate(cache)
        for cache in ("latest-score", "fading-score:fade=0", "fading-score", "fading-score:fade=1")
    }
    assert all(0.0 < share < 1.0 for share in hits.values())
    assert hits["latest-score"] == hits["fading-score:fade=0"]
    assert len(set(hits.values())) == 3, "the parameter has an effect"
    with pytest.raises(ImpossibleSetting, match="a number at least 0 and at most 1"):
        PolicySet.of(cache=policy("fading-score", fade=2))


def test_the_guide_names_limits_as_parameters_have_them() -> None:
    page = (ROOT / "docs" / "add-a-policy.md").read_text()
    (sentence,) = re.findall(r"Numbers have [^.]*\.", page)
    named = re.findall(r"`(\w+)`", sentence)
    assert {"above", "minimum", "maximum"} <= set(named) <= set(Parameter.__slots__)


def test_the_script_of_the_guide_works(tmp_path: Path) -> None:
    """It registers a policy of its own and simulates with it."""
    script = tmp_path / "study.py"
    script.write_text(blocks(ROOT / "docs" / "add-a-policy.md", "python")[1])
    done = subprocess.run([sys.executable, script], check=True, capture_output=True, text=True)
    assert 0.0 < float(done.stdout) < 1.0


def _hit_rate(cache: str) -> float:
    model, machine = load_model("olmoe-1b-7b"), load_machine("a6000-xeon5220r")
    policies = PolicySet.of(schedule="alternate", cache=cache)
    settings = Settings(model, machine, policies=policies, tokens=16, warmup=4, checked=True)
    return simulate(settings, choose_workload(None, settings).source).hit_rate
