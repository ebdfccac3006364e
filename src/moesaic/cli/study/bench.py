"""`moesaic bench`: how fast a model reads and writes on this machine, and how fast it could."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.busy import warn_if_busy
from moesaic.cli.shared.engine_options import (
    BATCH_INVARIANT,
    batch_invariant_option,
    default_system,
    engine_settings,
    one_text_options,
)
from moesaic.cli.shared.model_argument import model_argument
from moesaic.cli.shared.option_stack import one_of
from moesaic.cli.shared.policy_options import policy_list
from moesaic.cli.shared.short_help import ShortHelpCommand
from moesaic.cli.shared.simulation_options import (
    command_line,
    fallback_ratio_option,
    json_option,
    names,
    ratios,
)
from moesaic.cli.shared.table_formats import chosen_format, format_option
from moesaic.cli.shared.usual_options import BENCH
from moesaic.core.errors import ImpossibleSetting, MissingExtra
from moesaic.policies.gate import FULL, gates
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.policies.systems import SYSTEMS

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.lab.bench.bench_model import BenchModel
    from moesaic.lab.bench.bench_row import BenchConfig
    from moesaic.lab.bench.cases import Case


@click.command(cls=ShortHelpCommand, usual=BENCH)
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
    "--in-turns",
    is_flag=True,
    help="Repetitions are rounds in which all configurations take turns; says how many times as "
    "fast as the first each is within rounds. For busy machines.",
)
@click.option(
    "--trace",
    metavar="FILE",
    help="Whose routing: a trace's, or bundled | synthetic | none (the model's own routers).  "
    "[synthetic with --synthetic, else none]",
)
@click.option("--systems", help=f"Several at once, a comma list of {one_of(SYSTEMS)}.")
@click.option(
    "--compare",
    is_flag=True,
    help="Also the strategies of other programs on the same weights and memory, and stock "
    "transformers with accelerate's offloading where it is installed.",
)
@click.option(
    "--stock/--no-stock",
    default=True,
    help="With --compare: measure transformers with accelerate, too, which takes minutes.  [stock]",
)
@click.option(
    "--layerwise", is_flag=True, help="Drive every step layer by layer from Python, capture none."
)
@click.option("--cache-ratios", help="Several at once, a comma list of shares.")
@click.option("--gates", help="Several at once, a comma list of gates.")
@fallback_ratio_option
@one_text_options
@click.option(
    "--placement",
    metavar="FILE",
    help="Start from the expert uses that `moesaic run --placement FILE` has left; unchanged here.",
)
@batch_invariant_option
@click.option(
    "--timeline",
    metavar="FILE",
    help="Draw one decode step: .png, .svg or .pdf; of several "
    "systems or ratios each, with its name in the file's.",
)
@click.option("--perfetto", metavar="FILE", help="Write decode steps as .json for ui.perfetto.dev")
@format_option
@click.option(
    "--against",
    multiple=True,
    metavar="PROGRAM",
    help="Let others measure the same model in turns with this: llama.cpp=PATH, ik_llama.cpp=PATH "
    "(of llama-bench or its folder; random weights in the model's shape) or transformers; may be "
    "repeated.",
)
@json_option
@click.pass_context
def bench(context: click.Context, /, model: str | None, as_json: bool, **asked: Any) -> None:
    """Measure how fast a model reads and writes on this machine.

    MODEL is a directory in Hugging Face layout, an id there or a GGUF file; without it, the bundled
    moesaic-20m is measured. Rows are named as in llama-bench; each has its physical floor, at rates
    measured in the same run. Several systems and cache ratios share one loaded model."""
    if find_spec("torch") is None:
        raise MissingExtra("bench", "engine")
    form = _format(asked, as_json)
    if asked["in_turns"] and asked["layerwise"]:
        raise ImpossibleSetting("both --in-turns and --layerwise were given: give one of them")
    cases, settings = _cases(asked), _grid(asked)
    recorded = _recorded(asked, cases)
    if asked["against"]:
        _check_against(asked, settings, recorded)
    found = _open(model, asked, settings[0][1])

    from moesaic.cli.study.bench_against import print_comparison, run_peers
    from moesaic.cli.study.bench_runs import run_with_progress
    from moesaic.cli.study.bench_tables import described, print_as
    from moesaic.lab.bench.bench_configs import (
        check_fallbacks,
        check_layouts,
        packed_configs,
        plan_configs,
    )
    from moesaic.lab.bench.replayed_routing import OWN, SYNTHETIC, choose_routing

    configs = plan_configs(found.spec, packed_configs(found, settings), cases)
    check_layouts(found, configs)
    ratio = asked["fallback_ratio"]
    trace = asked["trace"] or (SYNTHETIC if asked["synthetic"] else OWN)
    if asked["against"] and not asked["compare"]:
        command = command_line(context)
        _against(model, asked, (found, configs[0]), cases, trace, command, form == "json")
        return
    routing = choose_routing(trace, found.spec, cases, asked["repetitions"])
    click.echo(f"routing: {routing.words}", err=True)
    check_fallbacks(configs, routing, ratio)
    if asked["in_turns"]:
        _check_turns(configs, recorded)
    warn_if_busy()
    done = run_with_progress(
        found, configs, cases, routing, asked["repetitions"], recorded, ratio, asked["in_turns"],
        asked["layerwise"],
    )  # fmt: skip
    result = described(done, routing, command_line(context))
    if asked["compare"]:
        result["peers"] = run_peers(
            found, configs, cases, asked["repetitions"], asked["against"], asked["stock"]
        )
    print_as(form, result)
    if asked["compare"] and form == "table":
        print_comparison(result)
    if done.recorders:
        from moesaic.cli.study.bench_pictures import write_pictures

        write_pictures(asked["timeline"], asked["perfetto"], done, routing, result["command"])


def _check_turns(configs: list[BenchConfig], recorded: bool) -> None:
    from moesaic.lab.bench.turns import check_turns

    if recorded:
        raise ImpossibleSetting("--in-turns draws nothing: leave out --timeline and --perfetto")
    check_turns(configs)


def _format(asked: dict[str, Any], as_json: bool) -> str:
    form = chosen_format(asked["format"], as_json)
    others = [f"--{name}" for name in ("against", "compare") if asked[name]]
    if others and form in ("csv", "md"):
        raise ImpossibleSetting(
            f"--format {form} has rows of this engine only: leave out {others[0]}, or use --json"
        )
    return form


def _check_against(
    asked: dict[str, Any], settings: list[tuple[str, EngineSettings]], recorded: bool
) -> None:
    from moesaic.cli.study.bench_against import check_against

    if not asked["compare"] and (len(settings) > 1 or recorded or asked["layerwise"]):
        raise ImpossibleSetting(
            "--against compares programs: leave out --systems, --cache-ratios, --gates, "
            "--batch-invariant, --layerwise, --timeline and --perfetto"
        )
    check_against(asked["against"])


def _against(
    model: str | None,
    asked: dict[str, Any],
    what: tuple[BenchModel, BenchConfig],
    cases: tuple[Case, ...],
    trace: str,
    command: str,
    as_json: bool,
) -> None:
    from moesaic.cli.shared.model_folder import model_folder
    from moesaic.cli.shared.output import print_json
    from moesaic.cli.study.bench_against import against_result, print_against, run_against
    from moesaic.lab.against.ours import MeasuredModel

    synthetic = asked["synthetic"]
    folder = None if synthetic is not None else str(model_folder(model))
    measured = MeasuredModel(folder, synthetic, asked["layers"], trace, cases)
    rows = run_against(asked["against"], *what, measured, asked["repetitions"])
    result = against_result(rows, *what, command)
    if as_json:
        print_json(result)
    else:
        print_against(result, rows)


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
    lists = (
        ("system", "--policies", "systems"),
        ("cache_ratio", "--cache-ratio", "cache_ratios"),
        ("gate", "--gate", "gates"),
    )
    for one, first, several in lists:
        if asked[one] is not None and asked[several] is not None:
            second = f"--{several.replace('_', '-')}"
            raise ImpossibleSetting(f"both {first} and {second} were given: give one of them")
    asked = _on_one_device(asked)
    single = asked["system"] or default_system(asked)
    systems = names("--systems", asked["systems"]) or [single]
    if asked["compare"]:
        systems = _compared(systems, engine_settings(asked, announce=False))
    shares: list[float | None] = [asked["cache_ratio"]]
    if asked["cache_ratios"] is not None:
        shares = list(ratios("--cache-ratios", asked["cache_ratios"]))
    gated: list[PolicyChoice | None] = list(policy_list("--gates", gates, asked["gates"]))
    grid = [
        (
            system if gate is None or gate.name == FULL else f"{system} + {gate}",
            {**asked, "system": system, "cache_ratio": share, "gate": gate or asked["gate"]},
        )
        for share, system, gate in product(shares, systems, gated or [None])
    ]
    priced = product(grid, _PRICED[: 1 + asked["batch_invariant"]])
    return [
        (
            f"{name}{words}",
            engine_settings({**each, "batch_invariant": invariant}, announce=number == 0),
        )
        for number, ((name, each), (words, invariant)) in enumerate(priced)
    ]


def _on_one_device(asked: dict[str, Any]) -> dict[str, Any]:
    """The options with an accelerator that can do all that is compared, where none is named: what
    is measured in one table is measured on the same devices."""
    from moesaic.machines.accelerators import AUTO, chosen_gpu

    if asked["accelerator"] not in (None, AUTO):
        return asked
    widest = {**asked, "cache_ratio": None, "system": None, "gate": None, "link_bandwidth": None}
    found = engine_settings(widest, announce=False).accelerator
    if chosen_gpu(found) and asked["against"] and not asked["compare"]:
        click.echo("--against compares on the CPU: the GPU is not used", err=True)
        found = "none"
    return {**asked, "accelerator": found}


# Beside each other, so that the price shows.
_PRICED = (("", False), (BATCH_INVARIANT, True))


def _compared(own: list[str], settings: EngineSettings) -> list[str]:
    from moesaic.lab.bench.compared_systems import compared_systems

    found = compared_systems(own, settings)
    for words in found.left_out:
        click.echo(f"not compared: {words}", err=True)
    return found.systems


def _recorded(asked: dict[str, Any], cases: tuple[Case, ...]) -> bool:
    """Whether pictures are wanted; what could not be written is refused now."""
    from moesaic.cli.shared.out_files import TRACES, check_file, check_picture

    check_picture("--timeline", asked["timeline"])
    check_file("--perfetto", asked["perfetto"], TRACES)
    wanted = [f"--{kind}" for kind in ("timeline", "perfetto") if asked[kind] is not None]
    if wanted and not any(case.phase == "decode" for case in cases):
        raise ImpossibleSetting(f"{wanted[0]} shows decode steps: give --generate some tokens")
    return bool(wanted)


def _open(model: str | None, asked: dict[str, Any], settings: EngineSettings) -> BenchModel:
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
    return from_folder(model_folder(model, settings))
