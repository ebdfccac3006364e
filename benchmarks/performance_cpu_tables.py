"""Tables of what was measured on a CPU alone."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.marked_page import table
from benchmarks.performance_figures import Figure
from benchmarks.performance_goals import (
    CPU_DECODE,
    CPU_FLOOR,
    NOT_SLOWER,
    OLMOE,
    STOCK_DECODE,
    Goal,
    cpu_prompt,
)
from benchmarks.performance_results import ResultRow, Results, number, rate

LLAMA, STOCK = ("llama.cpp", "ik_llama.cpp"), "transformers"
_PRECISIONS = ("bf16", "int4")


def cpu(results: Results) -> Iterator[str]:
    rows = [
        line
        for dtype in _PRECISIONS
        if (row := results.row("cpu", dtype)) is not None
        for line in _beside_others(row, dtype, results.row("cpu", f"{dtype}-alone"))
    ]
    if rows:
        head = ("", "Moesaic, tokens/s", *LLAMA, STOCK, "over the better of the first two",
                "asked", "over transformers", "over the floor")  # fmt: skip
        yield table(head, rows)
    product = results.row("cpu", "dense-product")
    if product is not None:
        yield _dense_product(product)


def _beside_others(row: ResultRow, dtype: str, alone: ResultRow | None) -> Iterator[list[str]]:
    for ours in row.all_of(name="moesaic"):
        test = ours["test"]
        decoding = test.startswith("tg")
        goal = CPU_DECODE[dtype] if decoding else cpu_prompt(dtype, row.machine.get("isa", []))
        others = [row.of(name=name, test=test) for name in LLAMA]
        stock = row.of(name=STOCK, test=test)
        over_stock = None if stock is None else stock["times"]
        together = alone is not None and alone.run == row.run  # else perhaps of another version
        floor = alone.of(test=test) if alone is not None and together else None
        yield [
            f"{test_words(test)}, {dtype}", spread(ours), *map(spread, others), spread(stock),
            goal.cell(least(others)), goal.words,
            STOCK_DECODE.cell(over_stock) if decoding else number(over_stock),
            _floor(floor, CPU_FLOOR if decoding else None),
        ]  # fmt: skip


def least(others: list[Figure | None]) -> float | None:
    """Against the better program, within rounds."""
    times = [each["times"] for each in others if each is not None]
    return min(times, default=None)


def _floor(figure: Figure | None, goal: Goal | None) -> str:
    value = None if figure is None else figure.get("floor_ratio")
    return number(value) if goal is None else goal.cell(value)


def spread(figure: Figure | None) -> str:
    if figure is None:
        return "–"
    return f"{number(rate(figure))} ({number(figure['low'])} to {number(figure['high'])})"


def test_words(test: str) -> str:
    """pp512, tg48@16 in words."""
    count, _, batch = test[2:].partition("@")
    if test.startswith("pp"):
        return f"prompt of {count}"
    return f"decode {count}" + (f", batch {batch}" if batch else "")


def _dense_product(row: ResultRow) -> str:
    head = ("dense weights of a prompt", "packed, tokens/s", "PyTorch's product, tokens/s",
            "packed over PyTorch's", "lowest, highest")  # fmt: skip
    lines = [
        [
            each["precision"], number(each["packed_tokens_per_s"]),
            number(each["pytorch_tokens_per_s"]), NOT_SLOWER.cell(each["times"]),
            f"{each['times_low']:.2f}, {each['times_high']:.2f}",
        ]
        for each in row.figures
    ]  # fmt: skip
    return table(head, lines)


def cpu_floor(results: Results) -> Iterator[str]:
    found: dict[tuple[int, str], dict[int, Figure]] = {}
    for row in results.section("cpu-floor"):
        for each in row.figures:
            key = (each["layers"], each["precision"])
            found.setdefault(key, {})[each["batch"]] = each
    lines = []
    for (layers, precision), batches in sorted(found.items(), key=lambda item: item[0][0]):
        one = batches.get(1, {})
        lines.append([
            str(layers), precision, number(one.get("ms")), number(one.get("tokens_per_s")),
            number(one.get("floor_ms")), CPU_FLOOR.cell(one.get("floor_ratio")),
            number(one.get("us_above")), number(one.get("stream_gb_s")),
            *(number(rate(batches.get(batch))) for batch in (4, 16)),
        ])  # fmt: skip
    if lines:
        head = ("layers", "precision", "ms a token", "tokens/s", "floor, ms",
                f"over the floor ({CPU_FLOOR.words})", "us a layer above it", "GB/s streamed",
                "batch 4, tokens/s", "batch 16, tokens/s")  # fmt: skip
        yield table(head, lines)


def cpu_olmoe(results: Results) -> Iterator[str]:
    names = {"bf16": "OLMoE-1B-7B, bf16", "int4": "OLMoE-1B-7B, int4", "bundled": "moesaic-20m"}
    lines = []
    for name, words in names.items():
        row = results.row("cpu-olmoe", name)
        for ours in row.all_of(name="moesaic") if row is not None else ():
            assert row is not None, "it has figures"
            theirs = row.of(name=LLAMA[0], test=ours["test"])
            times = None if theirs is None else theirs["times"]
            lines.append(
                [words, test_words(ours["test"]), spread(ours), spread(theirs), OLMOE.cell(times)]
            )
    if lines:
        head = ("model", "test", "Moesaic, tokens/s", LLAMA[0], f"times ({OLMOE.words})")
        yield table(head, lines)


def kernels(results: Results) -> Iterator[str]:
    row = results.row("kernels", "layer")
    lines = [
        [
            str(each["tokens"]), each["dtype"], number(each["ms"]), number(each["gb_s"]),
            number(each.get("over_pytorch")), NOT_SLOWER.cell(each.get("over_kt-kernel")),
        ]
        for each in (row.all_of(by="moesaic") if row is not None else ())
    ]  # fmt: skip
    if lines:
        head = ("tokens per expert", "precision", "ms a layer", "GB/s", "times PyTorch",
                f"times kt-kernel ({NOT_SLOWER.words})")  # fmt: skip
        yield table(head, lines)
