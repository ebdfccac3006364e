"""An answer and what it cost, as fields of JSON and as lines for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from moesaic.cli.shared.gate_lines import gate_lines
from moesaic.cli.shared.output import in_time
from moesaic.core.units import GB, NS_PER_S, NS_PER_US
from moesaic.model_info.kv_blocks import KV_BLOCK

if TYPE_CHECKING:
    from moesaic.engine.completion import Completion
    from moesaic.engine.run_stats import BlockStats, QueueStats, RunStats
    from moesaic.engine.sampling.sampled import Sampled
    from moesaic.engine.sampling.sampling_params import SamplingParams
    from moesaic.models.text.tokenizer import Tokenizer

Line = tuple[str, str]  # name, value


class Limits(NamedTuple):
    """What may end an answer early."""

    context: int  # tokens of prompt and answer together
    max_tokens: int
    shape: str | None  # the option that says what the answer must match

    @classmethod
    def of(cls, params: SamplingParams, context: int) -> Limits:
        shapes = ("json_schema", "grammar", "regex")
        given = [f"--{name.replace('_', '-')}" for name in shapes if getattr(params, name)]
        return cls(context, params.max_tokens, given[0] if given else None)


def answer_fields(completion: Completion, tokenizer: Tokenizer | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "text": completion.text,
        "tokens": list(completion.tokens),
        "finish_reason": completion.finish_reason,
        "prompt_tokens": list(completion.prompt_tokens),
        "cached_tokens": completion.cached_tokens,
        "timings": asdict(completion.timings),
    }
    if completion.logprobs is not None:
        fields["logprobs"] = [_logprobs(sampled, tokenizer) for sampled in completion.logprobs]
    return fields


def answer_lines(completions: Sequence[Completion], limits: Limits) -> Iterator[Line]:
    """Tokens, speed and why it ended: two lines of one answer, or one line of each of several."""
    if len(completions) == 1:
        (only,) = completions
        yield "prompt", f"{_prompt(only)}{_first_token(only)}"
        yield "answer", _generated(only, limits)
        return
    for number, one in enumerate(completions, start=1):
        yield (
            f"answer {number}",
            f"prompt of {_prompt(one)}{_first_token(one)}; {_generated(one, limits)}",
        )
    total = sum(len(one.tokens) for one in completions)
    seconds = max(one.timings.total_s for one in completions)
    yield "total", f"{_tokens(total)} in {in_time(seconds)}, {total / seconds:.1f} tokens/s"


def ending(completion: Completion, limits: Limits) -> str:
    """Why the answer has ended."""
    if completion.finish_reason == "cancelled":
        return "interrupted"
    if completion.finish_reason == "stop":
        return "end of answer"
    cut = f"cut at --max-tokens {limits.max_tokens}"
    if fills(completion, limits):
        cut = f"cut, because the context of {limits.context} tokens is full"
    if completion.finish_reason == "incomplete":
        return f"incomplete: {cut} before it matched {limits.shape}"
    return cut


def fills(completion: Completion, limits: Limits) -> bool:
    """Whether it was the context that ended the answer."""
    tokens = len(completion.tokens)
    return tokens < limits.max_tokens and (len(completion.prompt_tokens) + tokens >= limits.context)


def warn_incomplete(completions: Sequence[Completion], limits: Limits) -> bool:
    """Say which answers do not match what was asked for; whether there are any."""
    found = [one for one in completions if one.finish_reason == "incomplete"]
    for one in found:
        which = "the answer" if len(completions) == 1 else f"answer {completions.index(one) + 1}"
        advice = "--max-model-len" if fills(one, limits) else "--max-tokens"
        click.echo(f"warning: {which} is {ending(one, limits)}; raise {advice}", err=True)
    return bool(found)


def hit_rate_lines(stats: RunStats) -> Iterator[Line]:
    """What an accelerator's cache of experts was worth."""
    if stats.hit_rate is not None:
        yield "experts", f"hit rate {stats.hit_rate:.1%} in the accelerator's memory"


def detail_lines(stats: RunStats) -> Iterator[Line]:
    """The rest of what was counted, for `--stats`."""
    yield "steps", f"{stats.steps}, {stats.decode_steps} of them decode only; {stats.step_s:.2f} s"
    if stats.hit_rate is not None:
        yield "copied", f"{_megabytes(stats.bytes_moved)} of experts to the accelerator"
    if stats.overhead_us is not None:
        each = in_time(stats.overhead_us * NS_PER_US / NS_PER_S)
        yield "overhead", f"{each} per MoE layer when decoding, besides the network and the experts"
    if stats.cached_tokens:
        share = stats.cached_tokens / (stats.cached_tokens + stats.prompt_tokens)
        found = f"{_tokens(stats.cached_tokens)} of prompts ({share:.0%}) were taken from the "
        yield "KV cache", f"{found}prefix cache, which now holds {_tokens(stats.kept_tokens)}"
    else:
        yield "KV cache", "nothing of prompts was taken from the prefix cache"
    yield from _block_lines(stats.blocks)
    yield from _queue_lines(stats.queue)
    yield from gate_lines(asdict(stats.gate))


def _block_lines(blocks: BlockStats) -> Iterator[Line]:
    kept = f"{blocks.used} of {blocks.total} blocks of {KV_BLOCK} tokens are used"
    kept += f", {blocks.shared} by several requests, {blocks.kept} by ended ones only"
    yield "", kept
    if blocks.most_copies:
        there = f"{blocks.copies} of {blocks.most_copies} blocks are in main memory"
        yield "", f"{there}, from where {_tokens(blocks.loaded_tokens)} came back"
    if blocks.checkpoints:
        size = _megabytes(blocks.checkpoint_bytes)
        yield "", f"{blocks.checkpoints} checkpoints of windows and states in {size}"


def _queue_lines(queue: QueueStats) -> Iterator[Line]:
    if queue.begun > 1:
        waits = f"{in_time(queue.wait_s / queue.begun)}, at most {in_time(queue.longest_wait_s)}"
        yield "queue", f"{queue.begun} requests waited {waits}"
    if queue.preemptions:
        found = _tokens(queue.resumed_tokens)
        yield (
            "",
            f"{queue.preemptions} times a request made room for others; {found} of theirs were "
            "still there when they went on",
        )


def print_lines(*several: Iterator[Line]) -> None:
    """Print lines on standard error: answers are on standard output."""
    for name, value in chain(*several):
        click.echo(f"{name:<10}{value}", err=True)


def _prompt(completion: Completion) -> str:
    cached = completion.cached_tokens
    known = f" ({cached} from the prefix cache)" if cached else ""
    return f"{_tokens(len(completion.prompt_tokens))}{known}"


def _first_token(completion: Completion) -> str:
    first = completion.timings.time_to_first_token_s
    return "" if first is None else f", first token after {in_time(first)}"


def _generated(completion: Completion, limits: Limits) -> str:
    rate = completion.timings.decode_tokens_per_s
    speed = "" if rate is None else f", {rate:.1f} tokens/s"
    return f"{_tokens(len(completion.tokens))}{speed}; {ending(completion, limits)}"


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


def _megabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB" if size >= GB else f"{size / 1e6:.2f} MB"


def _logprobs(sampled: Sampled, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Text is None where the model has no tokenizer."""

    def text(token: int) -> str | None:
        return None if tokenizer is None else tokenizer.token_text(token)

    return {
        "token": sampled.token,
        "text": text(sampled.token),
        "logprob": sampled.logprob,
        "alternatives": [
            {"token": other.token, "text": text(other.token), "logprob": other.logprob}
            for other in sampled.alternatives
        ],
    }
