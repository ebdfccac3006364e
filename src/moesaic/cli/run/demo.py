"""`moesaic demo`: the bundled model answers with a quarter of its experts in the accelerator, and
policies are compared on it, here and on a simulated machine, with pictures and a trace to open."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from textwrap import fill

import click

from moesaic.core.errors import ImpossibleSetting, MissingExtra

QUESTION = (
    "There are 28 people on a bus. 13 get off and 9 get on. How many people are on the bus now?"
)
_PACKAGES = {"engine": ("torch", "tokenizers", "jinja2"), "plot": ("matplotlib",)}
_MODEL = """\
{name} comes with the package: {millions:.1f} million weights, {layers} layers of {experts} experts,
{top_k} of them per token. It answers, while an emulated accelerator holds a quarter of them:
"""
_SAME = """\
All answers are identical: policies change how fast a model answers, not what. The accelerator is a
thread on this CPU: decisions, copies and waiting are real, but its speed is not a GPU's, and
experts of a tenth of a megabyte are sooner computed than decided about. What they would cost on a
GPU, the simulator says.
"""
_DIFFERENT = """\
Not all answers are identical, which must not be: please report it with what `moesaic doctor` says.
"""
_SMALL = """\
{questions} more questions, with numbers it was not trained on: {right} answers are right. What the
routers said is kept in {routing},
and is replayed on a simulated RTX A6000 with ten Xeon cores. Fixed costs decide there, too:
"""
_LARGE = """
The same routing, were every expert as large as those of {large}. Now bytes decide:
"""
_AFTER = """\
Look at
  {out}/timeline.png    a step of the first answer, as it ran here
  {out}/compare.png     the simulated systems, with more GPU memory, too
  {out}/trace.json      more steps of the answer: open it in ui.perfetto.dev
Then try
  {moesaic} run -p "Lena is 9 years old. Omar is 4 years older. How old is Omar?"
  {moesaic} chat
  {moesaic} eval --limit 50
  {moesaic} bench --accelerator emulated --systems moesaic,ktransformers --cache-ratios 0.25,0.5
  {moesaic} simulate --model moesaic-20m --trace {out}/routing.moet --timeline simulated.png
  {moesaic} plan qwen3-30b-a3b --machine a6000-xeon5220r --accelerator emulated
  {moesaic} compare --model deepseek-v2-lite --cache-ratios 0.25,0.5 --plot large.png
  {moesaic} profile"""


@click.command()
@click.option("-p", "--prompt", "question", metavar="TEXT", help="Ask this.  [about a bus]")
@click.option("--out", default="demo-out", show_default=True, metavar="DIR", help="For the files.")
@click.option("--tokens", type=int, default=128, show_default=True, help="Simulated decode steps.")
def demo(question: str | None, out: str, tokens: int) -> None:
    """A short tour: the bundled model answers, and offloading policies are compared on it, on this
    machine and on a simulated one."""
    _check_packages()

    from moesaic.cli.run.demo_policies import refused_here
    from moesaic.cli.run.demo_runs import QUESTIONS, compare_here, first_answer, record_questions
    from moesaic.cli.run.demo_simulations import LARGE, check, compare_large, compare_small
    from moesaic.cli.run.demo_timeline import draw_answer

    check(tokens)
    folder = _folder(out)
    routing = folder / "routing.moet"

    _introduce()
    answer = first_answer(question or QUESTION)
    click.echo(_SAME if compare_here(answer) else _DIFFERENT)
    for name, why in refused_here().items():
        click.echo(fill(f"{name} is not among them: {why}.", width=100) + "\n")
    right = record_questions(routing)
    click.echo(_SMALL.format(questions=QUESTIONS, right=right, routing=routing))
    compare_small(routing, tokens)
    click.echo(_LARGE.format(large=LARGE))
    compare_large(routing, tokens, folder / "compare.png")
    draw_answer(answer, folder / "timeline.png", folder / "trace.json")
    click.echo(_AFTER.format(out=shlex.quote(out), moesaic=_command()))


def _introduce() -> None:
    from moesaic.model_info.model_config import read_model_config
    from moesaic.models.bundled_model import default_model

    spec = read_model_config(default_model())
    click.echo(
        _MODEL.format(
            name=spec.name,
            millions=spec.total_params / 1e6,
            layers=spec.num_layers,
            experts=spec.num_experts,
            top_k=spec.top_k,
        )
    )


def _command() -> str:
    """As it must be typed here: by its name, or by the path it was started with."""
    started = sys.argv[0]
    known = which("moesaic") is not None or Path(started).name != "moesaic"
    return "moesaic" if known else shlex.quote(os.path.relpath(started))


def _check_packages() -> None:
    for extra, packages in _PACKAGES.items():
        if not all(find_spec(package) for package in packages):
            raise MissingExtra("the demo", extra)


def _folder(out: str) -> Path:
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise ImpossibleSetting(f"--out {out!r} is a file: give the name of a directory")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
