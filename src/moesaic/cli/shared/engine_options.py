"""The options of every command that runs a model, and the settings they make.

An option that was not given is None; what it then means, `--help` says. Names are checked by
`EngineSettings`, so that a mistake gets the nearest match; policies: policy_options.py."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.accelerator_words import announce_accelerator
from moesaic.cli.shared.option_stack import one_of, stack
from moesaic.cli.shared.policy_options import chosen_policies, policy_choices
from moesaic.cli.shared.unused_options import check_accelerator_options
from moesaic.core.dtypes import BITS_PER_WEIGHT
from moesaic.core.errors import ImpossibleSetting
from moesaic.kernels.instruction_sets import KERNELS
from moesaic.model_info.dense_bytes import DENSE_DTYPES
from moesaic.model_info.kv_dtypes import KV_DTYPES
from moesaic.policies.quality_levels import quality_level

if TYPE_CHECKING:
    from moesaic.engine.engine_settings import EngineSettings

# Defaults of `EngineSettings`, here for `--help`: it must not wait for numpy.
SYSTEM = "moesaic"
ACCELERATORS = ("auto", "none", "emulated", "cuda")
DTYPES = ("auto", "bf16", "fp16", "fp32")
BATCH_INVARIANT = " + batch-invariant"  # behind the name of a system, in tables
CACHE_RATIO, LINK_GB_S, MAX_SEQUENCES = 0.25, 4.0, 32

_capacity_options = stack(
    click.option(
        "--accelerator",
        metavar="KIND",
        help=f"The device in addition to the CPU: {one_of(ACCELERATORS)}  "
        "[auto: the GPU, if one can be used]",
    ),
    click.option(
        "--cache-ratio",
        type=float,
        metavar="SHARE",
        help="Share of all routed experts, 0 to 1, that the accelerator holds.  "
        f"[what fits in --gpu-memory or on the GPU, else {CACHE_RATIO}]",
    ),
    click.option(
        "--gpu-memory",
        type=float,
        metavar="GB",
        help="What the accelerator may use, in 10^9 bytes.  [what is free on the GPU]",
    ),
    click.option(
        "--link-bandwidth",
        type=float,
        metavar="GB/S",
        help=f"Of copies to the emulated accelerator, in 10^9 bytes per second.  [{LINK_GB_S:g}]",
    ),
    click.option(
        "--max-model-len",
        type=int,
        metavar="TOKENS",
        help="Longest sequence, prompt and answer together.  [the model's, or what fits]",
    ),
    click.option(
        "--kv-tokens",
        type=int,
        metavar="TOKENS",
        help="Size of the KV cache: of all sequences together, kept ones too.  [what fits]",
    ),
    click.option(
        "--kv-dtype",
        metavar="DTYPE",
        help="Of the KV cache, in layers that keep every token: "
        f"{one_of(KV_DTYPES)}  [auto: as --dtype]",
    ),
    click.option(
        "--kv-host",
        type=float,
        metavar="GB",
        help="Main memory for prefixes that the accelerator's KV cache has no room for, in 10^9 "
        "bytes: they come back over the link.  [0]",
    ),
    click.option(
        "--prefix-cache/--no-prefix-cache",
        default=None,
        help="Keep the KV of ended sequences until blocks are needed, so that a prompt that "
        "begins alike is read from there on.  [prefix-cache; never in a recording]",
    ),
)

_sequences_option = click.option(
    "--max-sequences",
    type=int,
    metavar="N",
    help=f"Sequences generated at the same time.  [{MAX_SEQUENCES}]",
)

# For `plan`, which answers what `run` would do.
one_sequence_option = click.option(
    "--max-sequences", type=int, metavar="N", help="Sequences generated at the same time.  [1]"
)

# For commands that run several texts at a time.
batch_invariant_option = click.option(
    "--batch-invariant",
    is_flag=True,
    help="The same bits alone and beside other requests, which then take turns.",
)

# For commands that learn of a model, or start from what was learned.
placement_option = click.option(
    "--placement",
    metavar="FILE",
    help="Start from the expert uses in this file, if it exists, and add this run's at the end.",
)

_other_options = stack(
    click.option(
        "--dtype",
        metavar="DTYPE",
        help=f"Of everything but the routed experts: {one_of(DTYPES)}  [auto: as published]",
    ),
    click.option(
        "--expert-dtype",
        metavar="DTYPE",
        help=f"Of the routed experts: {one_of(('auto', *BITS_PER_WEIGHT))}  [auto: as the rest]",
    ),
    click.option(
        "--dense-dtype",
        metavar="DTYPE",
        help="Of all other matrices: "
        f"{one_of(('auto', *DENSE_DTYPES))}, or of single parts: head=int8+attention=int4  "
        "[auto: as --dtype]",
    ),
    click.option("--threads", type=int, metavar="N", help="Cores to use.  [all]"),
    click.option(
        "--kernel",
        metavar="NAME",
        help=f"What the CPU computes experts with: {one_of(KERNELS)}  [auto: the best it has]",
    ),
    click.option(
        "--mmap/--no-mmap",
        "mmap",
        default=None,
        help="Map a packed model's experts, or read them.  [map, but for GPUs and memory nodes]",
    ),
    click.option(
        "--belief",
        metavar="KIND",
        help="What the planner knows of costs: measured now | described by `moesaic profile`  "
        "[measured, or described where there is a profile of this machine with its GPU]",
    ),
    click.option("--check", is_flag=True, help="Check every plan while running."),
)

# For commands that work on one text at a time: it then has the whole KV cache.
one_text_options = stack(
    policy_choices(SYSTEM),
    _other_options,
    _capacity_options,
)
engine_options = stack(one_text_options, _sequences_option)

# option -> field of EngineSettings
_FIELDS = {
    "dtype": "dtype",
    "expert_dtype": "expert_dtype",
    "dense_dtype": "dense_dtype",
    "accelerator": "accelerator",
    "cache_ratio": "cache_ratio",
    "gpu_memory": "gpu_memory_gb",
    "link_bandwidth": "link_gb_s",
    "max_model_len": "max_model_len",
    "kv_tokens": "kv_tokens",
    "kv_dtype": "kv_dtype",
    "kv_host": "kv_host_gb",
    "prefix_cache": "prefix_cache",
    "max_sequences": "max_sequences",
    "threads": "threads",
    "kernel": "kernel",
    "mmap": "mmap",
    "placement": "placement",
    "belief": "belief",
    "check": "checked",
    "batch_invariant": "batch_invariant",
    "host": "host",  # of a machine that is only planned for
}


def engine_settings(asked: Mapping[str, Any], announce: bool = True) -> EngineSettings:
    """What was not asked for comes from the system, then from defaults. `announce`: print what was
    chosen where that was left open."""
    from moesaic.engine.engine_settings import EngineSettings

    fields = {
        field: asked[option] for option, field in _FIELDS.items() if asked.get(option) is not None
    }
    quality = asked.get("quality")
    if quality is not None:
        fields["quality_of"] = quality_level(quality).model
    settings = EngineSettings(policies=chosen_policies(asked), **fields)
    _check_link(asked, settings)
    if announce:
        announce_accelerator(settings)
    check_accelerator_options(asked, settings, announce)
    return _with_default_system(asked, settings, announce)


def one_text_settings(asked: Mapping[str, Any], announce: bool = True) -> EngineSettings:
    return engine_settings({**asked, "max_sequences": 1}, announce)


def _check_link(asked: Mapping[str, Any], settings: EngineSettings) -> None:
    """An option that would change nothing is refused, not ignored."""
    speed, able = asked.get("link_bandwidth"), settings.capabilities
    if speed is not None and able.own_memory:
        raise ImpossibleSetting(
            f"--link-bandwidth {speed:g} is of the emulated accelerator, but the link of "
            f"{settings.accelerator!r} is as fast as it is: leave it out, or add --accelerator "
            "emulated"
        )
    if speed is not None and not able.moves:
        raise ImpossibleSetting(
            f"--link-bandwidth {speed:g} is of the emulated accelerator, but there is no "
            "accelerator: add --accelerator emulated, or leave it out"
        )


def _with_default_system(
    asked: Mapping[str, Any], settings: EngineSettings, announce: bool
) -> EngineSettings:
    """With a GPU: print where costs come from, and take the system that `moesaic profile` found
    fastest, where neither a system nor a policy was asked for."""
    from moesaic.machines.accelerators import ACCELERATORS

    if settings.host is not None or not settings.capabilities.own_memory:
        return settings
    if ACCELERATORS[settings.accelerator].problem() is not None:  # refused where it matters
        return settings
    from moesaic.engine.belief_source import belief_source
    from moesaic.policies.policy_set import POLICY_FIELDS
    from moesaic.policies.systems import load_system

    source = belief_source(settings)
    if announce:
        click.echo(f"costs: {source.words}", err=True)
    chosen = [name for name in ("system", "quality", *POLICY_FIELDS) if asked.get(name) is not None]
    if chosen or source.system is None:
        return settings
    if announce:
        click.echo(
            f"system: {source.system}, as `moesaic profile` advises: {source.because}", err=True
        )
    return settings.with_system(load_system(source.system))


def default_system(asked: Mapping[str, Any]) -> str:
    """The one used where none is asked for: what `moesaic profile` advises, or Moesaic's own."""
    settings = engine_settings({**asked, "system": SYSTEM}, announce=False)
    if not settings.capabilities.own_memory:
        return SYSTEM
    from moesaic.engine.belief_source import belief_source

    return belief_source(settings).system or SYSTEM
