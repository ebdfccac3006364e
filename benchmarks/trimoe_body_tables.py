"""Tables of docs/trimoe.md about its choices one at a time, and about how far both bodies agree."""

from __future__ import annotations

from itertools import product

from benchmarks.marked_page import table
from benchmarks.trimoe_results import Results
from moesaic.reproductions.trimoe import check, paper, readings, sensitivity
from moesaic.reproductions.trimoe.systems import SYSTEMS

PARTS = (
    "fig6", "readings", "headline", "memory", "fig8", "fig9", "sensitivity", "migration", "sec5.5",
    "real",
)  # fmt: skip
VALUES = ("runs", "least", "median", "largest", "apart")


def sensitivity_table(results: Results) -> str:
    rows = []
    for name, (words, _) in sensitivity.CHOICES.items():
        cells = [
            results.text(f"sensitivity/{name}/{system}") for system in (paper.OURS, paper.BEYOND)
        ]
        for choices, setting in (
            (readings.LOCALIZED_CHOICES, "monde=localized"),
            (readings.REFINED_CHOICES, "one-candidate"),
            (readings.LEAST_FIRST_CHOICES, "least-first"),
        ):
            found = f"sensitivity/{name},{setting}/{paper.OURS}"
            cells.append(results.text(found) if name in choices else "")
        rows.append([words, *cells])
    head = (
        "changed", "`trimoe`", "`tri-balanced`", "`trimoe`, MoNDE `localized`",
        "one candidate", "fewest tokens first",
    )  # fmt: skip
    return table(head, rows)


def check_table(results: Results) -> str:
    head = ("model / plan", *(f"`{system}`" for system in check.SYSTEMS))
    rows = []
    for rule, work in product(check.RULES, check.WORKS):
        cells = [
            results.texts(
                f"check/{work.data}/{work.batch}/{system}/{way}@{rule}" for way in check.WAYS
            )
            for system in check.SYSTEMS
        ]
        rows.append([f"`{work.data}`, batch {work.batch}, {rule}", *cells])
    return table(head, rows)


def spread_table(results: Results) -> str:
    groups = [(f"{part}, {rule}", f"{part}@{rule}") for part, rule in product(PARTS, paper.RULES)]
    return _groups(results, "rows, contention", [*groups, ("all", "all")])


def spread_by_system_table(results: Results) -> str:
    sizes = {"large-batches": "batches 256 to 768", "small-batches": "batches 32 to 128"}
    groups = [
        (f"`{system}`, {words}", f"{size}:{system}")
        for (size, words), system in product(sizes.items(), SYSTEMS)
    ]
    return _groups(results, "system, synthetic routing", groups)


def _groups(results: Results, title: str, groups: list[tuple[str, str]]) -> str:
    rows = []
    for words, name in groups:
        if f"spread/{name}/{VALUES[0]}" in results.values:  # some systems have no small batches
            found = [results.value(f"spread/{name}/{value}") for value in VALUES]
            runs, *quotients, apart = (each for each in found if each is not None)
            rows.append([words, f"{runs:.0f}", *(f"{q:.2f}" for q in quotients), f"{apart:.0%}"])
    return table((title, "runs", "least", "median", "largest", "more than 5 % apart"), rows)
