"""`moesaic models`: the known models, or everything about one of them."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from moesaic.cli.shared.output import print_json, print_table
from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.model_spec import ModelSpec
from moesaic.model_info.model_zoo import known_models, load_model
from moesaic.models.bundled_model import NAME, default_model

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
        from moesaic.cli.info.local_models import list_local

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
