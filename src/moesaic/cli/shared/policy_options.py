"""The options that choose policies, the same for simulated and real runs: a policy's name, with its
parameters behind a colon.

Names and parameters are checked by `PolicySet`, not by click, so that a mistake gets the nearest
match; the choices in `--help` come from the registries."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import click

from moesaic.cli.shared.option_stack import F, one_of, stack
from moesaic.cli.shared.plugin_option import plugin_option
from moesaic.core.errors import ImpossibleSetting
from moesaic.core.registry import Registry
from moesaic.policies.cache import caches
from moesaic.policies.gate import gates
from moesaic.policies.layout import layouts
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.policies.policy_set import POLICY_FIELDS, PolicySet
from moesaic.policies.prefetch import prefetches
from moesaic.policies.quality_levels import LEVELS, quality_level
from moesaic.policies.schedule import schedules
from moesaic.policies.systems import EVERY_SYSTEM, load_system

FORM = "NAME[:PARAMETER=VALUE,...]"
# A comma separates policies, unless a parameter follows it.
_BETWEEN = re.compile(r",(?!\s*\w+\s*=)")
_OLD_NAME = "moesaic.old_system"  # what --system was given, which is --policies now
# Options that became parameters -> how they are given now.
_MOVED = {
    "--alpha": "it is a parameter of the cache mrs: --cache mrs:alpha=0.2",
    "--slots": "it is a parameter of every cache: --cache lru:pool=global",
}


def _moved(context: click.Context, option: click.Parameter, value: object) -> None:
    if value is not None:
        name = option.opts[0]
        message = f"No such option: {name}; {_MOVED[name]} (see `moesaic policies`)."
        raise click.NoSuchOption(name, message, ctx=context)


def _note_old_name(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None:
        words = "warning: --system is called --policies now; -sys is the system prompt"
        click.echo(words, err=True)
        context.meta[_OLD_NAME] = value


def _or_old_name(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    old: str | None = context.meta.get(_OLD_NAME)
    if old is None:
        return value
    if value is not None:
        raise ImpossibleSetting(
            f"both --policies {value} and --system {old}, its old name, were given: give --policies"
        )
    context.set_parameter_source("system", click.core.ParameterSource.COMMANDLINE)
    return old


moved_options = stack(
    *(click.option(name, hidden=True, expose_value=False, callback=_moved) for name in _MOVED)
)
promote_option = click.option(
    "--promote/--no-promote",
    default=None,
    help="Let experts computed on the CPU move to the GPU in idle link time.  [promote]",
)


def policy_choices(system: str | None = None) -> Callable[[F], F]:
    """Options for the policies; help names `system` as the default."""
    default = f"  [{system}]" if system is not None else ""
    own = PolicySet()
    return stack(
        click.option(
            "--policies",
            "system",
            metavar="SYSTEM",
            callback=_or_old_name,
            help=f"A known system's policies: {one_of(EVERY_SYSTEM)}{default}",
        ),
        click.option(
            "--system",
            "old_system",
            hidden=True,
            is_eager=True,
            expose_value=False,
            callback=_note_old_name,
        ),
        _policy_option("--schedule", schedules, own.schedule),
        _policy_option("--cache", caches, own.cache),
        _policy_option("--prefetch", prefetches, own.prefetch),
        _policy_option("--layout", layouts, own.layout),
        click.option("--gate", metavar=FORM, help=f"{one_of(gates)}  [{own.gate}]"),
        click.option(
            "--quality",
            metavar="LEVEL",
            help=f"Instead of --gate: {one_of(LEVELS)}, or a file of `moesaic calibrate`",
        ),
        promote_option,
        plugin_option,
        moved_options,
    )


def _policy_option(name: str, registry: Registry[Any], default: PolicyChoice) -> Callable[[F], F]:
    words = f"{one_of(registry)}  [{default}, or the system's]"
    return click.option(name, metavar=FORM, help=words)


def chosen_policies(asked: Mapping[str, Any]) -> PolicySet:
    """What was not asked for comes from the system, then from defaults. A policy that is named
    has its own defaults for the parameters not given, whatever the system's are."""
    system = asked.get("system")
    base = PolicySet() if system is None else load_system(system).policies
    given = {name: asked[name] for name in POLICY_FIELDS if asked.get(name) is not None}
    quality = asked.get("quality")
    if quality is not None:
        if "gate" in given:
            raise ImpossibleSetting(
                f"both --gate {given['gate']} and --quality {quality} were given: give one of them"
            )
        given["gate"] = quality_level(quality).gate
    return base.but(**given)


def policy_list(option: str, registry: Registry[Any], text: str | None) -> list[PolicyChoice]:
    """Several policies of a kind, `lru,mrs:alpha=0.7,pool=global,belady`, without repetitions;
    none where the option was not given."""
    if text is None:
        return []
    words = [word for word in _BETWEEN.split(text) if word.strip()]
    if not words:
        raise ImpossibleSetting(f"{option} is {text!r}: give at least one name, as in A,B")
    return list(dict.fromkeys(PolicyChoice.parse(registry, word) for word in words))
