"""An answer and what it cost, as fields of JSON and as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any

import click

from moesaic.cli.shared.gate_lines import gate_lines
from moesaic.cli.shared.in_time import in_time
from moesaic.core.units import GB, NS_PER_S, NS_PER_US

if TYPE_CHECKING:
    from moesaic.engine.completion import Completion
    from moesaic.engine.run_stats import RunStats
    from moesaic.engine.sampling.sampled import Sampled


def answer_fields(completion: Completion) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "finish_reason": completion.finish_reason,
        "prompt_tokens": list(completion.prompt_tokens),
        "cached_tokens": completion.cached_tokens,
        "timings": asdict(completion.timings),
    }
    if completion.logprobs is not None:
        fields["logprobs"] = [_logprobs(sampled) for sampled in completion.logprobs]
    return fields


def answer_lines(completion: Completion, context: int) -> Iterator[tuple[str, str]]:
    """`context` is the most tokens a sequence may have."""
    times = completion.timings
    first, rate = times.time_to_first_token_s, times.decode_tokens_per_s
    after = "" if first is None else f", first token after {in_time(first)}"
    cached = completion.cached_tokens
    known = f", {cached} of them from the KV cache" if cached else ""
    yield "prompt", f"{_tokens(len(completion.prompt_tokens))}{known}{after}"
    speed = "" if rate is None else f", {rate:.1f} tokens/s after the first"
    yield "answer", f"{_tokens(len(completion.tokens))}{speed}; {ending(completion, context)}"


def ending(completion: Completion, context: int) -> str:
    if completion.finish_reason == "cancelled":
        return "interrupted"
    if completion.finish_reason == "stop":
        return "it was finished"
    if fills(completion, context):
        return f"cut, because the context of {context} tokens is full"
    return "cut at --max-tokens"


def fills(completion: Completion, context: int) -> bool:
    return len(completion.prompt_tokens) + len(completion.tokens) >= context


def cost_lines(stats: RunStats) -> Iterator[tuple[str, str]]:
    if stats.hit_rate is not None:
        moved = f"{_megabytes(stats.bytes_moved)} were moved there"
        yield "experts", f"{stats.hit_rate:.1%} were found in the accelerator; {moved}"
    if stats.overhead_us is not None:
        own = in_time(stats.overhead_us * NS_PER_US / NS_PER_S)
        yield "overhead", f"{own} per layer are the engine's own"
    if stats.cached_tokens:
        share = stats.cached_tokens / (stats.cached_tokens + stats.prompt_tokens)
        yield (
            "KV cache",
            f"{_tokens(stats.cached_tokens)} of prompts ({share:.0%}) were not read again; "
            f"{stats.kept_tokens} are kept",
        )
    yield from gate_lines(asdict(stats.gate))


def print_lines(*several: Iterator[tuple[str, str]]) -> None:
    """On standard error: answers are on standard output."""
    for name, value in chain(*several):
        click.echo(f"{name:<10}{value}", err=True)


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= GB else f"{size / 1e6:.2f} MB"


def _logprobs(sampled: Sampled) -> dict[str, Any]:
    return {
        "token": sampled.token,
        "logprob": sampled.logprob,
        "alternatives": [other._asdict() for other in sampled.alternatives],
    }
