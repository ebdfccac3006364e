"""Tables of docs/trimoe.md about the headline: speedup over the best baseline."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from benchmarks.marked_page import table
from benchmarks.trimoe_results import Results
from moesaic.reproductions.trimoe import headline, memory, migration, paper
from moesaic.reproductions.trimoe.readings import MONDE, ROUTINGS

TITLES = "DeepSeek-V2 / Qwen3 / GLM-4.5-Air"
READINGS = tuple(product(ROUTINGS, MONDE))


def headline_table(results: Results) -> str:
    def line(routing: str, layout: str, rule: str) -> Iterator[str]:
        yield from (f"`{routing}`", f"`{layout}`", rule)
        for way in headline.WAYS:
            yield results.texts(f"headline/{way}/{routing}/{layout}/{m}@{rule}" for m in MODELS)
        start = f"readings/{routing}/{layout}/{paper.OURS}"
        yield results.texts(f"{start}/{model}@{rule}" for model in MODELS)

    head = (
        "routing", "MoNDE's layout", "contention", "KV cache in main memory, as in the paper",
        "what fits in 80 GB", "imagined card of 256 GB",
    )  # fmt: skip
    rows = [[*line(*reading, rule)] for rule in headline.RULES for reading in READINGS]
    stated = "{:g} to {:g}".format(*paper.DECODE_SPEEDUP)
    return table(head, [["the paper", "", "", stated, "", ""], *rows])


def readings_table(results: Results) -> str:
    """Least and largest of the models' averages, under every rule."""
    head = ("routing", "MoNDE's layout", "system", *paper.RULES)
    rows = []
    for (routing, layout), system in product(READINGS, (paper.OURS, paper.BEYOND)):
        start = f"readings/{routing}/{layout}/{system}"
        cells = [
            results.texts(
                (f"{start}/{which}@{rule}" for which in ("least", "largest")), between=" to "
            )
            for rule in paper.RULES
        ]
        rows.append([f"`{routing}`", f"`{layout}`", f"`{system}`", *cells])
    return table(head, rows)


def seeds_table(results: Results) -> str:
    head = ("routing", "MoNDE's layout", "contention", *paper.MODELS.values())
    rows = []
    for rule, (routing, layout) in product(("own-share", "none"), READINGS):
        cells = []
        for model in MODELS:
            start = f"seeds/{rule}/{routing}/{layout}/{model}/average"
            spread = results.texts((f"{start}/least", f"{start}/largest"), between=" to ")
            cells.append(f"{results.text(f'{start}/mean')} ({spread})")
        rows.append([f"`{routing}`", f"`{layout}`", rule, *cells])
    return table(head, rows)


def memory_tables(results: Results) -> str:
    """By batch, for the experts alone and with the attention before them."""
    tables = []
    for start, title in (("memory", "MoE layer"), ("memory-layer", "with the attention before it")):
        rows = [
            [
                name,
                *(
                    results.texts(f"{start}/{model}/{batch}/{way}" for batch in paper.BATCHES)
                    for way in memory.WAYS
                ),
            ]
            for model, name in paper.MODELS.items()
        ]
        ways = ("imagined card", "KV over PCIe", "KV computed by the CPU", "what fits in 80 GB")
        tables.append(table((title, *ways), rows))
    return "\n\n".join(tables)


def shares_table(results: Results) -> str:
    head = ("routing, batch 512", "cold (70 %)", "warm", "hot (a twelfth)")
    rows = [["the paper, Fig. 3", "0.08", "up to 0.70", ""]]
    for data, model in product(("chat", "three-classes", "real-skew"), MODELS):
        start = f"fig3/{model}/{data}/512"
        cells = [results.text(f"{start}/{name}", ".3f") for name in ("cold", "warm", "hot")]
        rows.append([f"`{data}`, {paper.MODELS[model]}", *cells])
    return table(head, rows)


def migration_table(results: Results) -> str:
    head = ("routing", *(f"`{system}`" for system in migration.RULES))
    rows = [
        [
            f"`{data}`",
            *(
                results.texts(f"migration/{data}/{system}@{rule}" for rule in paper.RULES)
                for system in migration.RULES
            ),
        ]
        for data in migration.DATA
    ]
    return table(head, rows)


MODELS = tuple(paper.MODELS)
