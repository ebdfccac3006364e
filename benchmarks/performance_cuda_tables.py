"""Tables of what was measured beside a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks.marked_page import table
from benchmarks.performance_figures import Figure
from benchmarks.performance_goals import (
    ACCELERATE,
    BATCHES,
    DECODE_FLOOR,
    DRIVEN,
    FIDELITY,
    GPU_DECODE,
    GPU_PROMPT,
    PROMPT_FLOOR,
    STATIC_PROMPT,
    Goal,
)
from benchmarks.performance_options import RATIOS
from benchmarks.performance_results import ResultRow, Results, number, rate, ratio

OURS, STATIC, LLAMA, STOCK = "moesaic", "ktransformers", "llama.cpp", "accelerate"
_MODELS = {"qwen": "Qwen3-30B-A3B", "deepseek": "DeepSeek-V2-Lite"}
_PRECISIONS = ("bf16", "int4")
# System or program -> how a table calls it.
_WORDS = {
    STATIC: "static experts (ktransformers)",
    "n-cpu-moe": "llama.cpp's strategy (n-cpu-moe)",
    "adapmoe": "GPU only (adapmoe)",
    "fiddler": "threshold (fiddler)",
    LLAMA: "llama.cpp itself",
    STOCK: "transformers + accelerate",
}
Reached = Callable[[float], float | None]  # by cache ratio


def cuda(results: Results) -> Iterator[str]:
    for model, words in _MODELS.items():
        for dtype in _PRECISIONS:
            row = results.row("cuda", f"{model}-{dtype}")
            if row is not None:
                yield _rates(row, f"{words}, {dtype}, tokens/s")
    goals = [
        line
        for model, words in _MODELS.items()
        for dtype in _PRECISIONS
        for line in _goals(results, model, dtype, words)
    ]
    if goals:
        head = ("times as fast as", "test", "asked", *(f"{share:.0%}" for share in RATIOS))
        yield table(head, goals)
    yield from _batches(results)
    yield from _accelerate(results)


def _rates(row: ResultRow, title: str) -> str:
    """A line for each system and program, a column for each test and share of the experts."""
    columns = list(dict.fromkeys((each["test"], each["cache_ratio"]) for each in row.figures))
    names = list(dict.fromkeys(each["name"] for each in row.figures))
    head = [title, *(f"{test}, {share:.0%}" for test, share in columns)]
    lines = [
        [
            _WORDS.get(name, name),
            *(
                number(rate(row.of(name=name, test=test, cache_ratio=share)))
                for test, share in columns
            ),
        ]
        for name in names
    ]
    return table(head, lines)


def _goals(results: Results, model: str, dtype: str, words: str) -> Iterator[list[str]]:
    row = results.row("cuda", f"{model}-{dtype}")
    if row is None:
        return
    driven = results.row(
        "cuda", f"layerwise-{dtype}" if model == "qwen" else f"layerwise-{model}-{dtype}"
    )
    for test in dict.fromkeys(each["test"] for each in row.figures):
        ours = _by_ratio(row, OURS, test)
        where = f"{words}, {dtype}, {test}"
        decoding = test.startswith("tg")
        peers: list[tuple[str, Goal, dict[float, Figure]]] = [
            (
                "llama.cpp",
                GPU_DECODE if decoding else GPU_PROMPT[dtype],
                _by_ratio(row, LLAMA, test),
            )
        ]
        if not decoding:
            peers.append(("static experts", STATIC_PROMPT, _by_ratio(row, STATIC, test)))
        elif driven is not None:
            words_of = "static experts driven from Python"
            peers.append((words_of, DRIVEN, _by_ratio(driven, STATIC, test)))
        for name, goal, theirs in peers:
            reached = [ratio(ours.get(share), theirs.get(share)) for share in RATIOS]
            yield [name, where, goal.words, *map(goal.cell, reached)]
        goal = DECODE_FLOOR if decoding else PROMPT_FLOOR
        floors = [ours[share].get("floor_ratio") if share in ours else None for share in RATIOS]
        yield ["time over the floor", where, goal.words, *map(goal.cell, floors)]


def _by_ratio(row: ResultRow, name: str, test: str) -> dict[float, Figure]:
    return {each["cache_ratio"]: each for each in row.all_of(name=name, test=test)}


def _batches(results: Results) -> Iterator[str]:
    lines = []
    for dtype in _PRECISIONS:
        row = results.row("cuda", f"batches-{dtype}")
        for ours in row.all_of(name=OURS) if row is not None else ():
            assert row is not None, "it has figures"
            others = [each for each in row.all_of(test=ours["test"]) if each["name"] != OURS]
            best = max(others, key=lambda each: each["tokens_per_s"], default=None)
            name = "–" if best is None else _called(best)
            lines.append([
                f"{ours['test']}, {dtype}", number(rate(ours)), number(rate(best)), name,
                BATCHES.cell(ratio(ours, best)),
            ])  # fmt: skip
    if lines:
        head = ("batches at 50%", "Moesaic, tokens/s", "best other strategy", "which",
                f"times ({BATCHES.words})")  # fmt: skip
        yield table(head, lines)


def _called(figure: Figure) -> str:
    name: str = figure["name"]
    return _WORDS.get(name, name)


def _accelerate(results: Results) -> Iterator[str]:
    row = results.row("cuda", "accelerate")
    lines = []
    for stock in row.all_of(name=STOCK) if row is not None else ():
        assert row is not None, "it has figures"
        ours = row.of(name=OURS, test=stock["test"], cache_ratio=stock["cache_ratio"])
        times = ratio(ours, stock)
        goal = ACCELERATE.cell(times) if stock["test"].startswith("tg") else number(times)
        lines.append([f"{stock['test']}, bf16", number(rate(ours)), number(rate(stock)), goal])
    if lines:
        head = ("Qwen3-30B-A3B at 50%", "Moesaic, tokens/s", _WORDS[STOCK],
                f"times (decode {ACCELERATE.words})")  # fmt: skip
        yield table(head, lines)


def gates(results: Results) -> Iterator[str]:
    row = results.row("cuda-gates", "gates")
    lines = [
        [
            each["system"], each["gate"], number(each.get("ratio")), number(each["tokens_per_s"]),
            number(each.get("over_full")), number(each.get("captured")),
        ]
        for each in (row.figures if row is not None else ())
    ]  # fmt: skip
    if lines:
        head = ("system", "gate", "share run again, or of wrong drafts", "tokens/s",
                "over full", "share of passes captured")  # fmt: skip
        yield table(head, lines)


def fidelity(results: Results) -> Iterator[str]:
    row = results.row("fidelity", "fidelity")
    lines = [
        [
            each["model"], each["system"], f"{each['cache_ratio']:.0%}",
            f"{each['predicted_ms']:.2f}", f"{each['measured_ms']:.2f}",
            f"{100 * each['error']:+.0f} %",
        ]
        for each in (row.figures if row is not None else ())
    ]  # fmt: skip
    if row is None or not lines:
        return
    good = sum(FIDELITY.met(abs(each["error"])) for each in row.figures)
    head = ("model", "system", "cached", "predicted, ms", "measured, ms",
            f"error ({good} of {len(lines)} within 10 %)")  # fmt: skip
    yield table(head, lines)
