"""The options that `simulate` and `compare` share, and what they mean together."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.option_order import repeated_options
from moesaic.cli.shared.option_stack import one_of, stack
from moesaic.cli.shared.policy_options import chosen_policies, policy_choices
from moesaic.cli.shared.unused_options import check_phase_options
from moesaic.cli.shared.what_if_options import changes_text
from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.kv_dtypes import KV_DTYPES
from moesaic.workloads.bundled_traces import DEFAULT_MODEL

if TYPE_CHECKING:
    from moesaic.hardware.machine_spec import MachineSpec
    from moesaic.lab.simulate.settings import Settings
    from moesaic.model_info.model_spec import ModelSpec
    from moesaic.policies.expert_profile import ExpertProfile

MACHINE = "a6000-xeon5220r"  # a link slow enough that offloading matters
CACHE_RATIO = 0.25
_DTYPES = ("auto", *BITS_PER_WEIGHT)


def names(option: str, commas: str | None) -> list[str]:
    """A comma list without repetitions; nothing where the option was not given."""
    if commas is None:
        return []
    found = dict.fromkeys(word.strip() for word in commas.split(",") if word.strip())
    if not found:
        raise ImpossibleSetting(f"{option} is {commas!r}: give at least one name, as in A,B")
    return list(found)


def ratios(option: str, commas: str) -> list[float]:
    try:
        return [float(word) for word in names(option, commas)]
    except ValueError:
        raise ImpossibleSetting(
            f"{option} is {commas!r}; expected numbers between 0 and 1, as in 0.25,0.5,0.75"
        ) from None


def factors(option: str, commas: str | None) -> dict[str, float]:
    """Names with a number each: `cpu=1.2,pcie=0.5`."""
    found: dict[str, float] = {}
    for word in names(option, commas):
        name, _, number = word.partition("=")
        try:
            factor = float(number)
        except ValueError:
            raise ImpossibleSetting(
                f"{option} has {word!r}; expected NAME=FACTOR, as in cpu=1.2,pcie=0.5"
            ) from None
        if name.strip() in found:
            raise ImpossibleSetting(f"{option} names {name.strip()!r} twice: give one factor")
        found[name.strip()] = factor
    return found


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")

workload_options = stack(
    click.option(
        "--model",
        default=DEFAULT_MODEL,
        show_default=True,
        help="A known model or a config.json.",
    ),
    click.option(
        "--trace",
        metavar="FILE",
        help="Routing to replay, or bundled | synthetic.  [recorded from the model if bundled, or "
        "synthetic]",
    ),
    click.option("--phase", default="decode", show_default=True, help="decode | prefill"),
    click.option("--tokens", type=int, help="Decode steps, or tokens per prompt.  [256]"),
    click.option("--batch", type=int, help="Sequences decoded in parallel.  [1]"),
    click.option("--context", type=int, help="Tokens already in the KV cache in decode.  [0]"),
    click.option(
        "--kv-cache",
        metavar="PLACE",
        help="Where the KV cache lies: gpu | main (read over PCIe) | main-cpu (the CPU computes "
        "attention to it).  [gpu]",
    ),
    click.option(
        "--kv-dtype",
        metavar="DTYPE",
        help=f"Of the KV cache, in layers that keep every token: {one_of(KV_DTYPES)}  "
        "[auto: 16 bits]",
    ),
    click.option("--prompts", type=int, help="Prompts measured in prefill.  [4]"),
    click.option("--warmup", type=int, help="Steps before measuring.  [32 tokens or 1 prompt]"),
    click.option("--seed", type=int, help="Of the synthetic routing.  [0]"),
)

fallback_ratio_option = click.option(
    "--fallback-ratio",
    type=float,
    metavar="SHARE",
    help="Of a gate like big-little: the share of tokens to run again, whatever the model's "
    "confidence; of self-speculative: the share of drafts that are wrong.  [by confidence]",
)

setup_options = stack(
    click.option(
        "--expert-dtype",
        metavar="DTYPE",
        help=f"Of the routed experts: {one_of(_DTYPES)}  [auto: as published]",
    ),
    click.option(
        "--dense-dtype",
        metavar="DTYPE",
        help=f"Of everything else: {one_of(_DTYPES)}  [auto: as published]",
    ),
    click.option(
        "--profile-tokens",
        type=int,
        metavar="N",
        help="Tokens of the trace, before what is replayed, that the initial placement and the "
        "cache start from.  [256]",
    ),
    click.option(
        "--first-token",
        type=int,
        metavar="N",
        help="Replay the trace from here on, whatever the profile.  [the first behind it]",
    ),
    click.option(
        "--placement",
        metavar="FILE",
        help="Start from the expert uses that `moesaic run --placement FILE` has left instead.",
    ),
    click.option("--fill", help="Initial GPU content, see `moesaic policies`.  [auto]"),
    click.option("--belief", help="Costs the planner knows: measured | described  [measured]"),
    click.option(
        "--belief-error",
        metavar="NAME=FACTOR,...",
        help="Make the planner's costs wrong: cpu=2 takes the CPU for half as fast as it is, "
        "pcie=0.5 the link for twice as fast.",
    ),
    fallback_ratio_option,
    click.option(
        "--prefetch-accuracy",
        type=float,
        metavar="SHARE",
        help="How much of what a rejected pass wanted its tokens use when they run again: a trace "
        "has one routing for both.  [0.8; 1 of a gate with reuse]",
    ),
    click.option("--check", is_flag=True, help="Check every plan while running."),
)

policy_options = policy_choices()

# option -> field of Settings, where they differ
_FIELDS = {"check": "checked"}
_PLAIN = (
    "phase", "cache_ratio", "tokens", "batch", "context", "kv_cache", "kv_dtype", "prompts",
    "warmup", "seed", "expert_dtype", "dense_dtype", "belief", "fallback_ratio",
    "prefetch_accuracy", "check", "profile_tokens", "first_token",
)  # fmt: skip


def build_settings(asked: dict[str, Any]) -> Settings:
    """Settings from options; what was not asked for comes from the system, then from defaults."""
    check_phase_options(asked)
    from moesaic.hardware.machine_reader import load_machine
    from moesaic.lab.simulate.settings import Settings
    from moesaic.model_info.model_zoo import load_model
    from moesaic.model_info.published_dtypes import AUTO, published_dtypes

    model = load_model(asked["model"])
    dense, experts = published_dtypes(model)
    given = {name: asked[name] for name in _PLAIN if asked.get(name) is not None}
    fields = {_FIELDS.get(name, name): value for name, value in given.items()}
    for name, published in (("expert_dtype", experts), ("dense_dtype", dense)):
        if fields.get(name, AUTO) == AUTO:
            fields[name] = published
    if asked.get("placement") is not None:
        fields["placement"] = _placement(asked["placement"], model)
    machine = with_changes(load_machine(asked["machine"]), asked.get("changes") or {})
    fields.setdefault("cache_ratio", usual_cache_ratio(machine))
    fields["belief_error"] = factors("--belief-error", asked.get("belief_error"))
    return Settings(
        model,
        machine,
        policies=chosen_policies(asked),
        **fields,
    )


def _placement(path: str, model: ModelSpec) -> ExpertProfile:
    from moesaic.policies.expert_profile import ProfiledModel, read_profile
    from moesaic.policies.shape import Shape

    shape = Shape(model.num_moe_layers, model.num_experts, model.top_k)
    return read_profile(path, ProfiledModel(model.name, shape))


def usual_cache_ratio(machine: MachineSpec) -> float:
    """The ratio where none is given: all, where the GPU reads every expert in the one memory."""
    return CACHE_RATIO if machine.unified is None else 1.0


def with_changes(spec: MachineSpec, changes: Mapping[str, Any]) -> MachineSpec:
    """Another machine, which says so by its name."""
    if not changes:
        return spec
    from moesaic.hardware.what_if import changed

    other = changed(spec, changes)
    return replace(other, name=f"{spec.name} with {changes_text(changes)}")


def command_line(context: click.Context) -> str:
    """The command that makes this result again: every option that was given, none that was not."""
    words = ["moesaic", *_verbs(context)]
    in_order = repeated_options(context)  # all of them stand where the first one does
    placed = {option for option, _ in in_order}
    for option in context.command.params:
        name = str(option.name)
        if name not in context.params:  # it is part of another
            continue
        if context.get_parameter_source(name) != click.core.ParameterSource.COMMANDLINE:
            continue
        if option in placed:
            words += [word for each, value in in_order for word in _words(each, [value])]
            in_order = []
        else:
            words += _words(option, context.params[name])
    return shlex.join(words)


def _verbs(context: click.Context) -> list[str]:
    """The command's name behind those of its groups, without the program's."""
    if context.parent is None or context.parent.parent is None:
        return [str(context.info_name)]
    return [*_verbs(context.parent), str(context.info_name)]


def _words(option: click.Parameter, value: Any) -> list[str]:
    if not isinstance(option, click.Option):
        return [str(value)]
    if option.is_flag:
        return [option.opts[0] if value else option.secondary_opts[0]]
    each = value if option.multiple else [value]
    return [word for one in each for word in (option.opts[0], str(one))]
