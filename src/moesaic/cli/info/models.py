"""`moesaic models`: the known models, everything about one of them, or (`--local`) what the cache
of the hub holds, and what of it this machine can do.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.output import print_json, print_table
from moesaic.core.errors import ImpossibleSetting, MissingExtra, MoesaicError
from moesaic.core.units import GB
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import known_models, load_model
from moesaic.models.bundled_model import NAME, default_model

if TYPE_CHECKING:
    from moesaic.model_info.hub.cached import CachedModel
    from moesaic.model_info.model_spec import ModelSpec


_DTYPES = ("bf16", "int8", "int4")


@click.command()
@click.argument("model", required=False)
@click.option("--local", is_flag=True, help="Those fetched from the hub, and which would fit here.")
@click.option("--executors", is_flag=True, help="Say of all known models who decodes them.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def models(model: str | None, local: bool, executors: bool, as_json: bool) -> None:
    """List the known models, or show one.

    MODEL is a known name, a Hugging Face config.json, a directory that contains one, a GGUF file,
    or an id on Hugging Face."""
    if executors:
        from moesaic.cli.info.model_executors import list_executors

        if model is not None or local:
            other = "--local" if model is None else repr(model)
            raise ImpossibleSetting(f"--executors is about all known models: leave out {other}")
        list_executors(as_json)
    elif local:
        if model is not None:
            raise ImpossibleSetting(f"--local lists all models: leave out {model!r}, or --local")
        list_local(as_json)
    elif model is None:
        _list([load_model(name) for name in known_models()], as_json)
    else:
        _show(load_model(model), model, as_json)


def active_params(spec: ModelSpec) -> int:
    """Parameters one token meets, embedding tables included, as publishers count them."""
    return spec.resident_params + spec.num_moe_layers * spec.top_k * spec.expert_params


def facts(spec: ModelSpec) -> dict[str, Any]:
    """What follows from the shapes; sizes in 10^6 and 10^9 bytes."""
    blocks = spec.num_expert_blocks
    return {
        "total_params": spec.total_params,
        "active_params": active_params(spec),
        "expert_params": spec.expert_params,
        "routed_experts": blocks,
        "expert_mb": {d: spec.expert_bytes(d) / 1e6 for d in _DTYPES},
        "all_experts_gb": {d: spec.expert_bytes(d) * blocks / 1e9 for d in _DTYPES},
        "kv_values_per_token": spec.kv_values_per_token * spec.kv_layers,
        "state_mb_per_sequence": spec.state_bytes / 1e6,
    }


def _list(specs: list[ModelSpec], as_json: bool) -> None:
    if as_json:
        print_json({"models": [asdict(spec) | facts(spec) for spec in specs]})
        return
    columns = ("model", "total", "active", "layers", "experts", "top-k", "MB")  # 80 characters
    rows = [
        (
            spec.name,
            _billions(spec.total_params),
            _billions(active_params(spec)),
            spec.num_moe_layers,
            spec.num_experts,
            spec.top_k,
            round(spec.expert_bytes("bf16") / 1e6, 1),
        )
        for spec in specs
    ]
    print_table("Known models: billions of parameters, MB of one bf16 expert", columns, rows)
    click.echo(
        f'{NAME} comes with the package: moesaic run -p "..." asks it. '
        "Of the others, shapes are known."
    )


def _billions(params: int) -> float:
    return round(params / 1e9, 1 if params >= 1e8 else 4)


def _show(spec: ModelSpec, model: str, as_json: bool) -> None:
    from moesaic.cli.info.model_executors import executors, network_of
    from moesaic.cli.info.model_executors import rows as executor_rows

    derived, network = facts(spec), network_of(spec, model)
    if as_json:
        print_json(asdict(spec) | derived | {"executors": executors(network)})
        return
    rows: list[tuple[str, object]] = [
        ("architecture", spec.family),
        ("source", spec.source),
        ("parameters", _params_text(spec.total_params)),
        ("active per token", _params_text(derived["active_params"])),
        ("layers", f"{spec.num_layers}, {spec.num_moe_layers} of them with routed experts"),
        ("routed experts", f"{spec.num_experts} per layer, {spec.top_k} per token"),
        ("router", _router(spec)),
        ("hidden size", spec.hidden_size),
        ("expert width", spec.expert_intermediate),
        ("shared expert width", spec.shared_intermediate or "none"),
        ("dense layers' width", spec.dense_intermediate or "none"),
        ("attention", _attention(spec)),
        ("context", f"{spec.max_context} tokens"),
        ("published in", _published(spec)),
        *executor_rows(network),
    ]
    print_table(spec.name, ("property", "value"), rows)
    sizes = [(d, derived["expert_mb"][d], derived["all_experts_gb"][d]) for d in _DTYPES]
    print_table("Routed experts", ("weights", "one expert MB", "all experts GB"), sizes)
    if spec.name == NAME:
        click.echo(f"weights, tokenizer and card: {default_model()}")


def _params_text(params: int) -> str:
    return f"{params / 1e9:.2f} B" if params >= 1e8 else f"{params / 1e6:.1f} M"


def _published(spec: ModelSpec) -> str:
    dtype = spec.native_dtype
    return f"a quantized format of about {dtype}'s size" if dtype.startswith("int") else dtype


def _router(spec: ModelSpec) -> str:
    return spec.scoring + (", weights sum to 1" if spec.normalized_topk else "")


def _attention(spec: ModelSpec) -> str:
    if spec.latent_attention is not None:
        return f"{spec.num_heads} heads, latent of {spec.kv_values_per_token} values per token"
    heads = f"{spec.num_heads} heads of {spec.head_dim}, {spec.num_kv_heads} for keys and values"
    if spec.linear_attention is not None:
        states = f"{len(spec.linear_layers)} of {spec.num_layers} layers are linear"
        return f"{heads}; {states}, with {spec.state_bytes / 1e6:.3g} MB of state per sequence"
    if not spec.window_layers:
        return heads
    return (
        f"{heads}; {len(spec.window_layers)} of {spec.num_layers} layers see the last "
        f"{spec.sliding_window} tokens"
    )


_LOCAL_DTYPES = ("auto", "int8", "int4")


def list_local(as_json: bool) -> None:
    from moesaic.model_info.hub.listing import cache_folder

    try:
        from moesaic.model_info.hub.cached import cached_models

        found, folder = [_described(each) for each in cached_models()], cache_folder()
    except ImportError:
        raise MissingExtra("listing fetched models", "engine") from None
    if as_json:
        print_json({"cache": str(folder), "models": found})
    elif not found:
        click.echo(f"{folder} holds no models: `moesaic run OWNER/NAME` fetches one")
    else:
        columns = ("model", "GB on disk", "runs", "fits here")
        rows = [
            (each["id"], round(each["bytes"] / GB, 2), each["runs"], each["fits"] or "")
            for each in found
        ]
        print_table(f"Models in {folder}", columns, rows)


def _described(cached: CachedModel) -> dict[str, Any]:
    known: dict[str, Any] = {
        "id": str(cached.hub_id),
        "commit": cached.commit,
        "folder": str(cached.folder),
        "bytes": cached.bytes,
        "missing": list(cached.missing),
    }
    from moesaic.model_info.model_config import read_model_config
    from moesaic.models.configs.runnable import why_not_run

    try:
        spec = read_model_config(cached.folder)
    except MoesaicError as error:
        said = "no: it is no mixture of experts that is known here"
        return known | {"runs": said, "reason": str(error), "fits": None}
    reason = why_not_run(spec, str(cached.folder))
    return known | {"runs": _runs(cached, reason), "reason": reason, "fits": _fits(spec)}


def _runs(cached: CachedModel, reason: str | None) -> str:
    if reason is not None:
        return "no: it can only be simulated"
    if cached.missing:
        return f"once {len(cached.missing)} more files are fetched"
    return "yes"


def _fits(spec: ModelSpec) -> str:
    """The expert precision in which the model would fit, without an accelerator, one sequence at a
    time."""
    from moesaic.engine.engine_settings import EngineSettings
    from moesaic.engine.memory.memory_plan import plan_memory
    from moesaic.hardware.host import memory

    _, available = memory()
    if available is None:
        return "unknown: the system does not say how much memory is available"
    for dtype in _LOCAL_DTYPES:
        settings = EngineSettings(expert_dtype=dtype, max_sequences=1, accelerator="none")
        try:
            plan = plan_memory(spec, settings, available)
        except ImpossibleSetting:
            continue
        how = "as published" if dtype == "auto" else f"with --expert-dtype {dtype}"
        return f"{how}, in {plan.main_bytes / GB:.1f} GB"
    return f"no, not even with int4 experts in {available / GB:.1f} GB"
