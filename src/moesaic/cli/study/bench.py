"""`moesaic bench`: how fast a model reads and writes on this machine, and how fast it could."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.engine_options import SYSTEM, engine_settings, one_text_options
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.policy_options import policy_list
from moesaic.cli.shared.simulation_options import (
    command_line,
    fallback_ratio_option,
    json_option,
    names,
    ratios,
)
from moesaic.core.errors import ImpossibleSetting, MissingExtra
from moesaic.policies.gate import FULL, gates
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.policies.systems import SYSTEMS

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.lab.bench.bench_model import BenchModel
    from moesaic.lab.bench.cases import Case


@click.command()
@model_argument
@click.option(
    "--synthetic",
    metavar="SPEC",
    help="Instead of MODEL: random weights in the shape of a known model or a config.json.",
)
@click.option("--layers", type=int, metavar="N", help="Of --synthetic, only the first N.  [all]")
@click.option(
    "-p",
    "--prompt-tokens",
    default="512",
    show_default=True,
    help="Prompts to read, a comma list of tokens: rows pp512, ...  (0: none)",
)
@click.option(
    "-n",
    "--generate",
    default="128",
    show_default=True,
    help="Answers to write, a comma list of tokens: rows tg128, ...  (0: none)",
)
@click.option(
    "--batch",
    default="1",
    show_default=True,
    help="Answers written at once, a comma list: rows tg128@4, ...",
)
@click.option("--repetitions", type=int, default=3, show_default=True, help="Of every test.")
@click.option(
    "--trace",
    metavar="FILE",
    help="Whose routing: a trace's, or bundled | synthetic | none (the model's own routers).  "
    "[synthetic with --synthetic, else none]",
)
@click.option("--systems", help=f"Several at once, a comma list of {one_of(SYSTEMS)}.")
@click.option("--cache-ratios", help="Several at once, a comma list of shares.")
@click.option("--gates", help="Several at once, a comma list of gates.")
@fallback_ratio_option
@one_text_options
@click.option(
    "--timeline",
    metavar="FILE",
    help="Draw one decode step: .png, .svg or .pdf; of several "
    "systems or ratios each, with its name in the file's.",
)
@click.option("--perfetto", metavar="FILE", help="Write decode steps as .json for ui.perfetto.dev")
@json_option
@click.pass_context
def bench(context: click.Context, /, model: str | None, as_json: bool, **asked: Any) -> None:
    """Measure how fast a model reads and writes on this machine.

    MODEL is a directory in Hugging Face layout; without it, the bundled moesaic-20m is measured.
    Rows are named as in llama-bench; each has its physical floor, at rates measured in
    the same run. Several systems and cache ratios share one loaded model."""
    if find_spec("torch") is None:
        raise MissingExtra("bench", "engine")
    cases, settings = _cases(asked), _grid(asked)
    recorded = _recorded(asked, cases)
    found = _open(model, asked)

    from moesaic.cli.shared.output import print_json
    from moesaic.cli.study.bench_runs import run_with_progress
    from moesaic.cli.study.bench_tables import described, print_bench
    from moesaic.lab.bench.bench_configs import check_fallbacks, plan_configs
    from moesaic.lab.bench.replayed_routing import OWN, SYNTHETIC, choose_routing

    configs = plan_configs(found.spec, settings, cases)
    ratio = asked["fallback_ratio"]
    trace = asked["trace"] or (SYNTHETIC if asked["synthetic"] else OWN)
    routing = choose_routing(trace, found.spec, cases, asked["repetitions"])
    click.echo(f"routing: {routing.words}", err=True)
    check_fallbacks(configs, routing, ratio)
    warn_if_busy()
    done = run_with_progress(found, configs, cases, routing, asked["repetitions"], recorded, ratio)
    result = described(done, routing, command_line(context))
    if as_json:
        print_json(result)
    else:
        print_bench(result)
    if done.recorders:
        from moesaic.cli.study.bench_pictures import write_pictures

        write_pictures(asked["timeline"], asked["perfetto"], done, routing, result["command"])


def _cases(asked: dict[str, Any]) -> tuple[Case, ...]:
    from moesaic.lab.bench.cases import make_cases

    if asked["repetitions"] < 1:
        raise ImpossibleSetting(f"--repetitions is {asked['repetitions']}; it must be at least 1")
    lists = [_counts(f"--{name}", asked[name.replace("-", "_")]) for name in _LISTS]
    return make_cases(*lists)


_LISTS = ("prompt-tokens", "generate", "batch")


def _counts(option: str, commas: str) -> list[int]:
    try:
        return [int(word) for word in names(option, commas)]
    except ValueError:
        raise ImpossibleSetting(
            f"{option} is {commas!r}; expected whole numbers, as in 128,512"
        ) from None


def _grid(asked: dict[str, Any]) -> list[tuple[str, EngineSettings]]:
    """Every system at every cache ratio, by name."""
    lists = (("system", "systems"), ("cache_ratio", "cache_ratios"), ("gate", "gates"))
    for one, several in lists:
        if asked[one] is not None and asked[several] is not None:
            first, second = (f"--{name.replace('_', '-')}" for name in (one, several))
            raise ImpossibleSetting(f"both {first} and {second} were given: give one of them")
    systems = names("--systems", asked["systems"]) or [asked["system"] or SYSTEM]
    shares: list[float | None] = [asked["cache_ratio"]]
    if asked["cache_ratios"] is not None:
        shares = list(ratios("--cache-ratios", asked["cache_ratios"]))
    gated: list[PolicyChoice | None] = list(policy_list("--gates", gates, asked["gates"]))
    return [
        (
            system if gate is None or gate.name == FULL else f"{system} + {gate}",
            engine_settings(
                {**asked, "system": system, "cache_ratio": share, "gate": gate or asked["gate"]}
            ),
        )
        for share in shares
        for system in systems
        for gate in gated or [None]
    ]


def _recorded(asked: dict[str, Any], cases: tuple[Case, ...]) -> bool:
    """Whether pictures are wanted; what could not be written is refused now."""
    from moesaic.cli.shared.out_files import TRACES, check_file, check_picture

    check_picture("--timeline", asked["timeline"])
    check_file("--perfetto", asked["perfetto"], TRACES)
    wanted = [f"--{kind}" for kind in ("timeline", "perfetto") if asked[kind] is not None]
    if wanted and not any(case.phase == "decode" for case in cases):
        raise ImpossibleSetting(f"{wanted[0]} shows decode steps: give --generate some tokens")
    return bool(wanted)


def _open(model: str | None, asked: dict[str, Any]) -> BenchModel:
    synthetic, layers = asked["synthetic"], asked["layers"]
    if model is not None and synthetic is not None:
        raise ImpossibleSetting(
            f"both a model directory, {model!r}, and --synthetic {synthetic} were given: give one"
        )
    if layers is not None and synthetic is None:
        raise ImpossibleSetting(
            f"--layers {layers} cuts a model with random weights: give --synthetic SPEC, too"
        )
    from moesaic.cli.shared.model_folder import model_folder
    from moesaic.lab.bench.bench_model import from_folder, random_model

    if synthetic is not None:
        return random_model(synthetic, layers)
    return from_folder(model_folder(model))
