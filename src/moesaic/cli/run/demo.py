"""`moesaic demo`: the bundled model answers on the CPU, beside stock transformers; then policies
are compared on it, here and on a simulated machine, with pictures and a trace to open."""

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
{top_k} of them per token. It answers, on this computer's CPU alone:
"""
_STOCK = """\
The same model in stock transformers, measured now, each alone in its process:
"""
_NO_STOCK = """\
How much faster that is than stock transformers is measured where that is installed: pip install
transformers, then run the demo again.
"""
_EMULATED = """
What if a device had room for a quarter of the experts? Policies decide which, and what is computed
where. An emulated one, a thread on this CPU, follows them for real: decisions, copies, waiting. Its
speed is not a GPU's, and an expert of this model has {kilobytes:.0f} KB: computing it takes less
time than deciding about it, so here the fastest policy is the one that decides least. What to look
at is how often an expert was there, what was moved, and whether the answer is the same:
"""
_SAME = """\
All answers are identical: policies change how fast a model answers, not what.
"""
_DIFFERENT = """\
Not all answers are identical, which must not be: please report it with what `moesaic doctor` says.
"""
_LARGE = """\
{questions} more questions, with numbers it was not trained on: {right} answers are right. What the
routers said is kept in {routing},
and is replayed on a simulated machine with a GPU, an RTX A6000 and ten Xeon cores, with experts as
large as those of {large}, as models have that do not fit into a GPU. Now bytes decide:
"""
_AFTER = """\
Look at
  {out}/timeline.png    a step of the answer with the emulated accelerator, as it ran here
  {out}/compare.png     the simulated systems, with more GPU memory, too
  {out}/trace.json      more steps of the answer: open it in ui.perfetto.dev
Then try
  {moesaic} run -p "Lena is 9 years old. Omar is 4 years older. How old is Omar?"
  {moesaic} chat
  {moesaic} eval --limit 50
  {moesaic} bench --against transformers
  {moesaic} bench --accelerator emulated --systems moesaic,ktransformers --cache-ratios 0.25,0.5
  {moesaic} simulate --model moesaic-20m --trace {out}/routing.moet --timeline simulated.png
  {moesaic} plan qwen3-30b-a3b --machine a6000-xeon5220r
  {moesaic} compare --model deepseek-v2-lite --cache-ratios 0.25,0.5 --plot large.png
  {moesaic} profile"""


@click.command()
@click.option("-p", "--prompt", "question", metavar="TEXT", help="Ask this.  [about a bus]")
@click.option("--out", default="demo-out", show_default=True, metavar="DIR", help="For the files.")
@click.option("--tokens", type=int, default=128, show_default=True, help="Simulated decode steps.")
def demo(question: str | None, out: str, tokens: int) -> None:
    """A short tour: the bundled model answers beside stock transformers, and offloading policies
    are compared on it, on this machine and on a simulated one with a GPU."""
    _check_packages()

    from moesaic.cli.run.demo_runs import (
        QUESTIONS,
        compare_here,
        compare_with_stock,
        draw_answer,
        emulated_answer,
        first_answer,
        record_questions,
        refused_here,
    )
    from moesaic.cli.run.demo_simulations import LARGE, check, compare_large

    check(tokens)
    folder = _folder(out)
    routing = folder / "routing.moet"

    kilobytes = _introduce()
    asked = first_answer(question or QUESTION).prompt_tokens
    if find_spec("transformers") is None:
        click.echo(_NO_STOCK)
    else:
        click.echo(_STOCK)
        compare_with_stock()
    click.echo(_EMULATED.format(kilobytes=kilobytes))
    answer = emulated_answer(asked)
    click.echo(_SAME if compare_here(answer) else _DIFFERENT)
    for name, why in refused_here().items():
        click.echo(fill(f"{name} is not among them: {why}.", width=100) + "\n")
    right = record_questions(routing)
    click.echo(_LARGE.format(questions=QUESTIONS, right=right, routing=routing, large=LARGE))
    compare_large(routing, tokens, folder / "compare.png")
    draw_answer(answer, folder / "timeline.png", folder / "trace.json")
    click.echo(_AFTER.format(out=shlex.quote(out), moesaic=_command()))


def _introduce() -> float:
    """Returns how many KB an expert has."""
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
    return spec.expert_bytes(spec.native_dtype) / 1e3


def _command() -> str:
    """The command as it must be typed here: by its name, or by the path it was started with."""
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
