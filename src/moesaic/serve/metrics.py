"""What /metrics says, in the text format of Prometheus: the engine's statistics, and what clients
waited for. docs/serving.md has the names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moesaic.engine.run_stats import LaneStats, RunStats
from moesaic.serve.histogram import Histogram

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST_S = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 300)
_TOKEN_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
_ANSWER_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)


class _Metric(NamedTuple):
    name: str
    kind: str
    what: str
    value: float | None  # None: there is none yet, and the line is left out


class ServerMetrics:
    def __init__(self) -> None:
        self.first_token = Histogram(
            "moesaic_time_to_first_token_seconds",
            "From the arrival of a request to its first token.",
            _FIRST_S,
        )
        self.between_tokens = Histogram(
            "moesaic_time_per_output_token_seconds",
            "Between one token of an answer and the next.",
            _TOKEN_S,
        )
        self.answer = Histogram(
            "moesaic_request_seconds", "From the arrival of a request to its end.", _ANSWER_S
        )
        self._responses: dict[int, int] = {}
        self.unloads = 0
        self.refused_connections = 0

    def count_response(self, status: int) -> None:
        self._responses[status] = self._responses.get(status, 0) + 1

    def text(self, stats: RunStats, ready: bool, loaded: bool) -> str:
        """`ready`: requests are taken; `loaded`: the engine has its model."""
        return "".join(f"{line}\n" for line in self._lines(stats, ready, loaded))

    def _lines(self, stats: RunStats, ready: bool, loaded: bool) -> Iterator[str]:
        own = (
            _Metric("moesaic_engine_loaded", "gauge", "1: the engine has its model.", int(loaded)),
            _Metric(
                "moesaic_engine_unloads_total", "counter", "Ends of an idle engine.", self.unloads
            ),
            _Metric(
                "moesaic_refused_connections_total",
                "counter",
                "Connections beyond --max-connections.",
                self.refused_connections,
            ),
        )
        for name, kind, what, value in (*_of_engine(stats, ready), *own):
            if value is not None:
                yield f"# HELP {name} {what}"
                yield f"# TYPE {name} {kind}"
                yield f"{name} {value:.9g}" if isinstance(value, float) else f"{name} {value}"
        yield from _busy_lines(stats.lanes)
        for histogram in (self.first_token, self.between_tokens, self.answer):
            yield from histogram.lines()
        yield from self.response_lines()

    def response_lines(self) -> Iterator[str]:
        yield "# HELP moesaic_http_responses_total Responses by status."
        yield "# TYPE moesaic_http_responses_total counter"
        for status, count in sorted(self._responses.items()):
            yield f'moesaic_http_responses_total{{status="{status}"}} {count}'


def _busy_lines(lanes: LaneStats) -> Iterator[str]:
    yield "# HELP moesaic_busy_seconds_total Time for which each lane has worked."
    yield "# TYPE moesaic_busy_seconds_total counter"
    for lane, busy_s in (("gpu", lanes.gpu_s), ("cpu", lanes.cpu_s), ("link", lanes.link_s)):
        if busy_s is not None:
            yield f'moesaic_busy_seconds_total{{lane="{lane}"}} {busy_s:.9g}'


def _of_engine(stats: RunStats, ready: bool) -> Iterator[_Metric]:
    queue, blocks = stats.queue, stats.blocks
    in_use = blocks.used - blocks.kept
    usage = in_use / blocks.total if blocks.total else 0.0
    gauge, counter = "gauge", "counter"
    for name, kind, what, value in (
        ("engine_ready", gauge, "1: requests are taken.", int(ready)),
        ("requests_running", gauge, "Requests in the engine's batch.", queue.running),
        ("requests_waiting", gauge, "Requests in the engine's queue.", queue.waiting),
        ("waiting_tokens", gauge, "Tokens of the prompts that wait.", queue.waiting_tokens),
        ("preemptions_total", counter, "Requests that made room for others.", queue.preemptions),
        ("prompt_tokens_total", counter, "Tokens of prompts that were read.", stats.prompt_tokens),
        ("generated_tokens_total", counter, "Tokens generated.", stats.generated_tokens),
        (
            "cached_tokens_total",
            counter,
            "Tokens of prompts found in the KV cache.",
            stats.cached_tokens,
        ),
        ("kv_blocks", gauge, "Blocks of the KV cache.", blocks.total),
        ("kv_blocks_used", gauge, "Blocks of running requests.", in_use),
        ("kv_blocks_kept", gauge, "Blocks kept of requests that ended.", blocks.kept),
        (
            "kv_loaded_tokens_total",
            counter,
            "Tokens whose blocks came back from main memory.",
            blocks.loaded_tokens,
        ),
        (
            "expert_hit_ratio",
            gauge,
            "Share of the wanted experts that the accelerator held.",
            stats.hit_rate,
        ),
        (
            "expert_wanted_total",
            counter,
            "Experts that layers wanted, with an accelerator.",
            None if stats.lanes.gpu_s is None else stats.wanted_experts,
        ),
        (
            "expert_hits_total",
            counter,
            "Of those, experts that the accelerator held.",
            None if stats.lanes.gpu_s is None else stats.expert_hits,
        ),
        ("link_bytes_total", counter, "Bytes over the accelerator's link.", stats.bytes_moved),
        ("steps_total", counter, "Forward passes.", stats.steps),
        ("step_seconds_total", counter, "Time in forward passes.", stats.step_s),
        ("failed_steps_total", counter, "Forward passes that failed.", stats.failed_steps),
    ):
        yield _Metric(f"moesaic_{name}", kind, what, value)
    # Names that dashboards for vLLM look for.
    yield _Metric("vllm:num_requests_running", gauge, "moesaic_requests_running", queue.running)
    yield _Metric("vllm:num_requests_waiting", gauge, "moesaic_requests_waiting", queue.waiting)
    yield _Metric("vllm:kv_cache_usage_perc", gauge, "Share of blocks that are in use.", usage)
