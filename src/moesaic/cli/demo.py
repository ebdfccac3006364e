"""`moesaic demo`: a toy model made on the spot answers under known systems; then the same decisions
on a simulated machine, with two pictures and a trace to open."""

from __future__ import annotations

import os
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import click

from moesaic.core.errors import ImpossibleSetting, MissingExtra

TRAIN_STEPS = 100
_PACKAGES = {"engine": ("torch", "tokenizers", "safetensors"), "plot": ("matplotlib",)}
_PROMPTS = 8  # gone on with for the recording
_ANSWER = """\
It goes on with a text, while an emulated accelerator holds a quarter of its experts:
"""
_TOY = """\
The routing of {prompts} such answers, recorded in {routing}, is replayed on a simulated
RTX A6000 with ten Xeon cores. Experts are so small here that fixed costs decide:
"""
_LARGE = """
DeepSeek-V2-Lite, a real model's shape, on the same simulated machine; a quarter of its experts
fits into the GPU, and all systems replay one synthetic trace:
"""
_AFTER = """\
Look at {out}/compare.png and {out}/timeline.png; open {out}/trace.json in ui.perfetto.dev.
Then try:
  {moesaic} run {out}/model -p "A river carries more than" --temperature 0 --max-tokens 64
  {moesaic} chat {out}/model
  {moesaic} bench --synthetic olmoe-1b-7b --layers 2
  {moesaic} plan qwen3-30b-a3b --machine a6000-xeon5220r --accelerator emulated
  {moesaic} profile
  {moesaic} compare --cache-ratios 0.25,0.5,0.75 --phase prefill --tokens 128 --plot prefill.png"""


@click.command()
@click.option("--out", default="demo-out", show_default=True, metavar="DIR", help="For the files.")
@click.option("--tokens", type=int, default=256, show_default=True, help="Simulated decode steps.")
@click.option(
    "--train-steps",
    type=int,
    metavar="N",
    default=TRAIN_STEPS,
    show_default=True,
    help="Of the toy model; with fewer it knows less.",
)
def demo(out: str, tokens: int, train_steps: int) -> None:
    """A short tour: a toy model answers, and offloading systems are compared, on this machine and
    on a simulated one."""
    _check_packages()

    from moesaic.cli.demo_runs import ANSWER_TOKENS, compare_systems, first_answer, record
    from moesaic.cli.demo_simulations import compare_large, compare_toy, large_model, show_large
    from moesaic.cli.demo_toy import new_toy, put_toy

    large, toy = large_model(tokens), new_toy(train_steps)
    folder = _folder(out)
    model, routing = folder / "model", folder / "routing.moet"

    put_toy(toy, model)
    click.echo(_ANSWER)
    prompts = toy.page.openings(_PROMPTS)
    answer = first_answer(model, prompts[0], min(tokens, ANSWER_TOKENS))
    compare_systems(model, prompts[0], answer)
    record(model, prompts, routing)
    click.echo(_TOY.format(prompts=len(prompts), routing=routing))
    compare_toy(model, routing, tokens)
    click.echo(_LARGE)
    compare_large(large, folder / "compare.png")
    show_large(large, folder / "timeline.png", folder / "trace.json")
    click.echo(_AFTER.format(out=shlex.quote(out), moesaic=_command()))


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
