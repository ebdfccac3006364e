"""The options of `LLM` and `AsyncLLM` as keywords: typed for editors, and listed by `help()`.

`EngineOptions` repeats the names and types of `EngineSettings` for type checkers; a test compares
them. Defaults and descriptions are not repeated: they are read from the fields themselves, the
descriptions from the comments beside them.
"""

from __future__ import annotations

import inspect
import io
import tokenize
from collections.abc import Callable
from dataclasses import MISSING, fields
from os import PathLike
from typing import Any, TypeVar, get_type_hints

from moesaic.engine.engine_settings import EngineSettings
from moesaic.policies.policy_choice import PolicyChoice
from moesaic.policies.policy_set import POLICY_FIELDS, Choices, PolicySet

Init = TypeVar("Init", bound=Callable[..., None])
PLANS_ONLY = ("host",)  # fields of `EngineSettings` that a model which is run has not got


class EngineOptions(Choices, total=False):
    """Fields of `EngineSettings` and of its policies, and `quality`."""

    policies: PolicySet
    dtype: str
    expert_dtype: str
    dense_dtype: str
    experts_per_token: int | None
    kernel: str
    accelerator: str
    cache_ratio: float | None
    gpu_memory_gb: float | None
    link_gb_s: float
    link_latency_us: float
    max_model_len: int | None
    max_sequences: int | None
    kv_tokens: int | None
    kv_dtype: str
    kv_host_gb: float
    max_queue: int | None
    max_queue_tokens: int | None
    max_step_tokens: int | None
    max_stall_ms: float | None
    prefix_cache: bool
    threads: int | None
    mmap: bool | None
    belief: str
    checked: bool
    batch_invariant: bool
    placement: str | PathLike[str] | None
    quality_of: str | None
    quality: str | None  # a quality level, or a file of `moesaic calibrate`, instead of a gate


def list_options(init: Init) -> Init:
    """Decorates an `__init__` with `**options: Unpack[EngineOptions]`: its signature and its
    docstring then have every option."""
    signature = inspect.signature(init)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = option_parameters()
    described = _comments(Choices) | _comments(EngineOptions) | _comments(EngineSettings)
    lines = [f"    {option.name}: {described.get(option.name, '')}" for option in options]
    init.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    init.__doc__ = "\n".join([inspect.cleandoc(init.__doc__ or ""), "", "Options:", *lines])
    return init


def option_parameters() -> list[inspect.Parameter]:
    """Settings first. A default is what holds where neither the option nor `settings` is given."""
    settings = (each for each in fields(EngineSettings) if each.name not in PLANS_ONLY)
    defaults = {each.name: each.default for each in settings}
    policies = PolicySet()
    defaults |= {name: _as_given(getattr(policies, name)) for name in POLICY_FIELDS}
    defaults |= {"policies": ..., "quality": None}  # its fields are listed one by one
    assert MISSING not in defaults.values(), "only policies are made by a function"
    types, kind = get_type_hints(EngineOptions), inspect.Parameter.KEYWORD_ONLY
    return [
        inspect.Parameter(name, kind, default=value, annotation=types[name])
        for name, value in defaults.items()
    ]


def _as_given(value: Any) -> Any:
    return str(value) if isinstance(value, PolicyChoice) else value


def _comments(described: type) -> dict[str, str]:
    """The comment in the line of each field; nothing where Python has no source."""
    try:
        source = inspect.getsource(described)
    except OSError:
        return {}
    found: dict[str, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        name, is_field, _ = token.line.strip().partition(":")
        if token.type == tokenize.COMMENT and is_field and name.isidentifier():
            found[name] = token.string.removeprefix("#").strip()
    return found
