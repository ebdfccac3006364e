"""Tables of docs/trimoe.md that stand for the paper's figures, table 3 and section 5.5."""

from __future__ import annotations

from itertools import product

from benchmarks.marked_page import table
from benchmarks.trimoe_results import Results
from moesaic.reproductions.trimoe import beyond, paper, real_traces, table3
from moesaic.reproductions.trimoe.sources import FIG_3

SYSTEMS = (paper.OURS, paper.BEYOND)
DRIFTS = {
    "steady": "no drift",
    "code": "10 % over 32 steps",
    "chat": "10 % over 8 steps",
    "slow-drift": "27 % over 32 steps",
    "together": "27 % over 3 steps",
}
SINGLE = {  # row -> what it says, and how it is written
    "fig5/gpu-share": ("Fig. 5: GPU with 256 tokens, share of its peak (at least)", ".2f"),
    "fig5/amx-32": ("CPU with 32 tokens, TFLOPS", ".1f"),
    "fig5/amx-256": ("CPU with 256 tokens, TFLOPS", ".1f"),
    "fig5/warm-on-ndp/chat": ("Section 3.1: units' time with warm experts over without", ".1f"),
    "fig5/warm-on-ndp/real-skew": ("the same at the skew of a real trace", ".1f"),
    "sec5.5/four-experts/links=1": (
        "Section 5.5: four experts moved, ms, one link per DIMM",
        ".2f",
    ),
    "sec5.5/four-experts/links=2": ("two links per DIMM", ".2f"),
    "sec5.5/window/256": ("window of GPU computation, ms, batch 256", ".2f"),
    "sec5.5/window/512": ("batch 512", ".2f"),
    "sec5.5/window/768": ("batch 768", ".2f"),
    "sec5.5/predictor-kb": ("predictor's memory, kB", ".1f"),
    "sec5.5/predictor/qwen3-235b-a22b/chat/512/class": (
        "predictor right about hot and warm experts (above), batch 512",
        ".2f",
    ),
    "sec5.5/predictor/qwen3-235b-a22b/chat/32/class": ("batch 32", ".2f"),
    "sec5.5/predictor/qwen3-235b-a22b/chat/512/decision": (
        "predictions that would move an expert and are confirmed, batch 512",
        ".2f",
    ),
}


def figures_table(results: Results) -> str:
    """Averages of figures 6 to 8 and section 5.5 under every rule."""
    rows = [
        ("Fig. 6: over the best baseline, least of the models' averages", "fig6/least"),
        ("Fig. 6: largest of them", "fig6/largest"),
    ]
    for model, title in paper.MODELS.items():
        rows.append((f"Fig. 6: {title}, `trimoe`", f"fig6/average/{model}"))
        rows.append((f"Fig. 6: {title}, `tri-balanced`", f"fig6/average/{model}/{paper.BEYOND}"))
    for model, title in paper.MODELS.items():
        rows.append((f"Fig. 7: {title}, from prompt to last token", f"fig7/{model}/average"))
    rows += [
        ("Fig. 8: CPU, over balanced GPU and NDP (MoNDE)", "fig8/chat/+cpu"),
        ("Fig. 8: CPU, over greedy GPU and NDP (makespan model)", "fig8/chat/+cpu-over-greedy"),
        ("Fig. 8: refinement", "fig8/chat/+refinement"),
        ("Fig. 8: relayout and rebalancing", "fig8/chat/+relayout"),
    ]
    for batch in paper.SMALL_BATCHES:
        name = f"sec5.5/batch-{batch}/chat/trimoe"
        rows.append((f"Section 5.5: Qwen3, batch {batch}", name))
    cells = [
        [words, results.stated(f"{name}@own-share"), *_by_rule(results, name)]
        for words, name in rows
    ]
    name = f"sec5.5/migration-overhead/{paper.QWEN}"
    overhead = ["Section 5.5: overhead of migration, Qwen3 (makespan model; below)"]
    overhead += [results.stated(f"{name}@own-share"), *_by_rule(results, name, ".4f")]
    return table(("", "paper", *paper.RULES), [*cells, overhead])


def single_table(results: Results) -> str:
    rows = [
        [words, results.stated(name), results.text(name, form)]
        for name, (words, form) in SINGLE.items()
    ]
    return table(("", "paper", "ours"), rows)


def bars_table(results: Results) -> str:
    systems = ("enhanced-ktransformers", "monde", *SYSTEMS)
    rows = [
        [
            f"{title}, `{data}`",
            *(
                results.texts(
                    (f"fig6/{model}/{data}/{batch}/{system}@own-share" for batch in paper.BATCHES),
                    ".1f",
                )
                for system in systems
            ),
        ]
        for (model, title), data in product(paper.MODELS.items(), FIG_3)
    ]
    return table(("Klotski = 1", *(f"`{system}`" for system in systems)), rows)


def latency_table(results: Results) -> str:
    points = [(f"{n} NDP units", f"ndp/{n}") for n in paper.NDP_COUNTS]
    points += [(f"{f:g} times the CPU's TFLOPS", f"cpu/{f:g}") for f in paper.CPU_FACTORS]
    rows = [
        [words, *(results.text(f"fig9/{name}/trimoe@{rule}") for rule in paper.RULES)]
        for words, name in points
    ]
    return table(("`trimoe`, Qwen3, batch 512", *paper.RULES), rows)


def drift_table(results: Results) -> str:
    rows = [
        [f"{words} (`{data}`)", *_by_rule(results, f"fig8/{data}/+relayout")]
        for data, words in DRIFTS.items()
    ]
    return table(("gain of relayout and rebalancing", *paper.RULES), rows)


def small_table(results: Results) -> str:
    rows = [
        [
            f"batch {batch}, `{data}`",
            *(
                results.texts(f"sec5.5/batch-{batch}/{data}/{system}@{rule}" for system in SYSTEMS)
                for rule in paper.RULES
            ),
        ]
        for batch, data in product(paper.SMALL_BATCHES, ("chat", "steady"))
    ]
    return table(("`trimoe` / `tri-balanced`", *paper.RULES), rows)


def utilisation_table(results: Results) -> str:
    rows = []
    for system, shares in paper.UTILISATION.items():
        for device, stated in shares.items():
            if stated is not None:
                start = f"table3/{system}/{device}"
                cells = [results.text(f"{start}/{way}@own-share", ".3f") for way in table3.WAYS]
                rows.append([f"`{system}`, {device}", f"{stated:.3f}", *cells])
    return table(("", "paper", *table3.WAYS), rows)


def real_table(results: Results) -> str:
    rows = []
    for model, system in product(real_traces.TRACES, SYSTEMS):
        cells = [
            results.texts(f"real/{model}/{batch}/{system}@{rule}" for batch in real_traces.BATCHES)
            for rule in paper.RULES
        ]
        rows.append([f"{model}, `{system}`", *cells])
    return table(("batch 64 / 256", *paper.RULES), rows)


def layouts_table(results: Results) -> str:
    states = tuple(product(("right", "wrong"), beyond.SCHEDULES))
    head = ("layout", *(f"`{schedule}`, {state}" for state, schedule in states))
    rows = [
        [words, *(results.text(f"beyond/{paper.QWEN}/{state}/{layout}/{s}") for state, s in states)]
        for layout, words in beyond.LAYOUTS.items()
    ]
    return table(head, rows)


def _by_rule(results: Results, name: str, form: str = ".2f") -> list[str]:
    return [results.text(f"{name}@{rule}", form) for rule in paper.RULES]
