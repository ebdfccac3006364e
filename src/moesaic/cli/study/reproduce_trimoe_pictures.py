"""TriMoE's figures from rows. Knows matplotlib and the rows' ids, and nothing of simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moesaic.cli.shared.pictures import (
    FAINT,
    GRID,
    INK,
    legend_below,
    new_figure,
    plain,
    save,
    title_above,
)
from moesaic.cli.study.reproduction_rows import RULES, Lines, named, pivot, titled

if TYPE_CHECKING:
    from moesaic.reproductions.row import Row

COLOURS = ("#3b7dc4", "#d9662b", "#5b9e5b", "#8c6bb1", "#c9a227", "#4aa5a5")
PAPER = "#444444"
MODELS = {"deepseek-v2": "DeepSeek-V2", "qwen3-235b-a22b": "Qwen3-235B-A22B"}
MODELS["glm-4.5-air"] = "GLM-4.5-Air"
SYSTEMS = ("enhanced-ktransformers", "monde", "trimoe", "tri-balanced")
RULE_WORDS = "contention rule: how long a host read occupies the DIMMs it touches"
PATHS = {
    "gpu": "GPU, in its memory",
    "gpu-pcie": "GPU, over PCIe",
    "cpu": "CPU, striped",
    "cpu-localized": "CPU, one DIMM",
    "ndp": "one NDP unit",
    "ndp-all": "16 NDP units",
}


def grouped(axes: Any, lines: Lines, columns: Sequence[str], digits: int = 2) -> None:
    """Bars: one group per line, one colour per column; the value above each."""
    width = 0.84 / len(columns)
    small = len(lines) * len(columns) > 14
    for index, column in enumerate(columns):
        for at, line in enumerate(lines.values()):
            if column not in line:
                continue
            x = at - 0.42 + (index + 0.5) * width
            colour = PAPER if column == "paper" else COLOURS[index % len(COLOURS)]
            axes.bar(x, line[column], 0.92 * width, color=colour, zorder=2)
            text = f"{line[column]:.{digits}f}"
            axes.text(
                x, line[column], text, ha="center", va="bottom", color=INK,
                fontsize=6 if small else 7.5, rotation=90 if small else 0,
            )  # fmt: skip
    axes.set_xticks(range(len(lines)), list(lines), fontsize=8)
    highest = max((value for line in lines.values() for value in line.values()), default=1.0)
    axes.set_ylim(0, 1.18 * highest)
    axes.grid(axis="y", color=GRID, linewidth=0.6, zorder=0)
    plain(axes)


def legend(figure: Any, names: Sequence[str], title: str | None = None) -> None:
    from matplotlib.patches import Patch

    colours = [
        PAPER if name == "paper" else COLOURS[i % len(COLOURS)] for i, name in enumerate(names)
    ]
    handles = [Patch(color=c, label=n) for c, n in zip(colours, names, strict=True)]
    legend_below(figure, handles, size=8, title=title)


def fig3(path: str, rows: Sequence[Row]) -> bool:
    """Shares of tokens, stacked, by model, data set and batch."""
    from matplotlib.patches import Patch

    lines = pivot(rows, "fig3/", "/") | {
        f"real/{name}": line for name, line in pivot(rows, "real/fig3/", "/").items()
    }
    lines.pop("average", None)
    if not lines:
        return False
    figure = new_figure(9.0, 1.6 + 0.22 * len(lines))
    axes = figure.subplots()
    names = list(lines)[::-1]
    left, handles = [0.0] * len(names), []
    axes.set_yticks(range(len(names)), names)
    for colour, kind in zip(COLOURS, ("hot", "warm", "cold"), strict=False):
        handles.append(Patch(color=colour, label=kind))
        for at, name in enumerate(names):
            if kind not in lines[name]:
                continue  # unknown is no bar
            value = lines[name][kind]
            axes.barh(name, value, left=left[at], color=colour, zorder=2)
            where = left[at] + value / 2
            axes.text(
                where, at, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color="white"
            )
            left[at] += value
    of = [row for row in rows if row.id.startswith(("fig3/", "real/fig3/"))]
    title_above(figure, titled("Fig. 3: share of tokens by class of experts", of))
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(-0.7, len(names) - 0.3)
    axes.set_xlabel("share of tokens (paper: cold 0.08, warm up to 0.70)", color=FAINT, fontsize=8)
    axes.set_ylabel("model / data set / batch size in sequences", color=FAINT, fontsize=8)
    plain(axes)
    legend_below(figure, handles, size=8)
    save(figure, path)
    return True


def fig5(path: str, rows: Sequence[Row]) -> bool:
    """Throughput by tokens, doubly logarithmic."""
    curves = {name: line for name, line in pivot(rows, "fig5/", "/").items() if name in PATHS}
    if not curves:
        return False
    figure = new_figure(7.0, 4.6)
    axes = figure.subplots()
    for colour, (name, line) in zip(COLOURS, curves.items(), strict=False):
        points = sorted((int(tokens), value) for tokens, value in line.items())
        axes.plot(
            *zip(*points, strict=True), marker="o", markersize=3, color=colour, label=PATHS[name]
        )
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("tokens that the expert computes", color=FAINT)
    axes.set_ylabel("throughput in TFLOP per second", color=FAINT)
    axes.grid(color=GRID, linewidth=0.6, zorder=0)
    plain(axes)
    title_above(figure, "Fig. 5: throughput of one Qwen3-235B-A22B expert")
    legend_below(figure, axes.get_lines(), size=8)
    save(figure, path)
    return True


def fig6(path: str, rows: Sequence[Row]) -> bool:
    """One panel per model: bars over Klotski under the default rule."""
    own = [r._replace(id=r.id.partition("@")[0]) for r in rows if r.id.endswith("@own-share")]
    panels = {}
    for model, title in MODELS.items():
        found = pivot(own, f"fig6/{model}/", "/")
        if found:
            panels[title] = {name.replace("/", "\n"): line for name, line in found.items()}
    title = named("Fig. 6: MoE layer in decode, speedup over Klotski, own-share", rows, "fig6/")
    across = "data set and batch size in sequences"
    return _panels(path, panels, SYSTEMS, title, ("times the speed of Klotski", across))


def _panels(
    path: str,
    panels: dict[str, Lines],
    columns: Sequence[str],
    title: str,
    units: tuple[str, str],
    legend_title: str | None = None,
) -> bool:
    """`units`: what the heights are, and what the groups."""
    if not panels:
        return False
    figure = new_figure(max(6.0, 4.6 * len(panels)), 4.2)
    every = figure.subplots(1, len(panels), squeeze=False, sharey=True).ravel()
    top = 0.0  # they share an axis, whose limits each panel sets for itself
    for axes, (name, lines) in zip(every, panels.items(), strict=True):
        grouped(axes, lines, columns)
        axes.set_title(name, loc="left", fontsize=10, color=INK)
        axes.set_xlabel(units[1], color=FAINT, fontsize=8)
        top = max(top, axes.get_ylim()[1])
    every[0].set_ylim(0, top)
    every[0].set_ylabel(units[0], color=FAINT, fontsize=9)
    title_above(figure, title)
    legend(figure, columns, legend_title)
    save(figure, path)
    return True


def with_paper(rows: Sequence[Row], start: str) -> Lines:
    """Lines by rule, the paper's value in front."""
    found = pivot(rows, start, "@")
    for row in rows:
        if row.id.startswith(start) and row.paper is not None and "@" in row.id:
            found[row.id[len(start) :].partition("@")[0]]["paper"] = row.paper
    return found


def fig7(path: str, rows: Sequence[Row]) -> bool:
    panels = {t: with_paper(rows, f"fig7/{m}/") for m, t in MODELS.items()}
    panels = {title: lines for title, lines in panels.items() if lines}
    title = "Fig. 7: TriMoE from prompt to last token, over the best baseline, by output tokens"
    title = named(title, rows, "fig7/")
    units = "times the throughput of the best baseline", "output tokens"
    return _panels(path, panels, (*RULES, "paper"), title, units, RULE_WORDS)


def fig8(path: str, rows: Sequence[Row]) -> bool:
    panels = {data: with_paper(rows, f"fig8/{data}/") for data in ("chat", "code", "steady")}
    panels = {data: lines for data, lines in panels.items() if lines}
    title = "Fig. 8: gain of each part over the stage before it, batch 512, mean of three models"
    title = named(title, rows, "fig8/")
    units = "times the speed of the stage before", "part that is added"
    return _panels(path, panels, (*RULES, "paper"), title, units, RULE_WORDS)


def fig9(path: str, rows: Sequence[Row]) -> bool:
    """Two panels: units, CPU speed; one line per system and rule."""
    found = {what: pivot(rows, f"fig9/{what}/", "@") for what in ("ndp", "cpu")}
    if not all(found.values()):
        return False
    figure = new_figure(9.0, 4.0)
    labels = {"ndp": "number of NDP units", "cpu": "CPU speed, times AMX's 90.1 TFLOP per second"}
    for axes, (what, lines) in zip(figure.subplots(1, 2), found.items(), strict=True):
        for system, style in (("trimoe", "-"), ("tri-balanced", "--")):
            for colour, rule in zip(COLOURS, RULES, strict=False):
                points = sorted(
                    (float(name.split("/")[0]), line[rule])
                    for name, line in lines.items()
                    if name.endswith(f"/{system}") and rule in line
                )
                label = f"{system}, {rule}" if what == "ndp" else None
                axes.plot(
                    *zip(*points, strict=True),
                    style,
                    marker="o",
                    markersize=3,
                    color=colour,
                    label=label,
                )
        axes.set_xscale("log", base=2)
        ticks = sorted({float(name.split("/")[0]) for name in lines})
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_ylim(bottom=0)
        axes.set_xlabel(labels[what], color=FAINT, fontsize=9)
        axes.set_ylabel("latency, times that of the paper's machine", color=FAINT, fontsize=9)
        axes.grid(color=GRID, linewidth=0.6, zorder=0)
        plain(axes)
    title = named("Fig. 9: MoE layer of Qwen3-235B-A22B, batch 512", rows, "fig9/")
    title_above(figure, title)
    legend_below(figure, figure.axes[0].get_lines(), size=8, title=RULE_WORDS)
    save(figure, path)
    return True


def table3(path: str, rows: Sequence[Row]) -> bool:
    """One panel per definition, under the default rule."""
    from moesaic.reproductions.trimoe.table3 import WAYS

    panels: dict[str, Lines] = {}
    for row in rows:
        if row.id.startswith("table3/") and row.id.endswith("@own-share"):
            name, _, way = row.id.partition("@")[0].removeprefix("table3/").rpartition("/")
            line = panels.setdefault(way, {}).setdefault(name.replace("/", "\n"), {})
            line["ours"] = row.ours
            if row.paper is not None:
                line["paper"] = row.paper
    if not panels:
        return False
    figure = new_figure(12.5, 2.9 * len(panels))
    every = figure.subplots(len(panels), 1, squeeze=False).ravel()
    for axes, (way, lines) in zip(every, panels.items(), strict=True):
        names = {n.replace("enhanced-", "enhanced-\n"): line for n, line in lines.items()}
        grouped(axes, names, ("ours", "paper"))
        axes.set_title(f"{way}: {WAYS[way]}", loc="left", fontsize=9, color=INK)
        axes.set_ylabel("utilisation, share of 1", color=FAINT, fontsize=8)
    title = named("Table 3: utilisation by three definitions, own-share", rows, "table3/")
    title_above(figure, title)
    legend(figure, ("ours", "paper"))
    save(figure, path)
    return True


def sensitivity(path: str, rows: Sequence[Row]) -> bool:
    lines = pivot(rows, "sensitivity/", "/")
    if not lines:
        return False
    figure = new_figure(8.0, 1.4 + 0.34 * len(lines))
    axes = figure.subplots()
    for at, line in enumerate(reversed(lines.values())):
        for offset, colour, system in (
            (0.2, COLOURS[0], "trimoe"),
            (-0.2, COLOURS[1], "tri-balanced"),
        ):
            if system in line:
                label = system if at == 0 else None
                axes.barh(at + offset, line[system], 0.36, color=colour, label=label, zorder=2)
                axes.text(
                    line[system], at + offset, f" {line[system]:.2f}", va="center", fontsize=7
                )
    axes.axvspan(2.12, 2.83, color=GRID, alpha=0.5, zorder=0, label="paper, 2.12 to 2.83")
    axes.set_yticks(range(len(lines)), list(lines)[::-1], fontsize=8)
    title = named("Speedup over the best baseline, one choice changed", rows, "sensitivity/")
    title_above(figure, title)
    axes.set_xlabel("times the speed of the best baseline", color=FAINT, fontsize=9)
    axes.margins(x=0.08)
    axes.set_ylim(-0.7, len(lines) - 0.3)
    plain(axes)
    legend_below(figure, axes.get_legend_handles_labels()[0], size=8)
    save(figure, path)
    return True


FIGURES: dict[str, Callable[[str, Sequence[Row]], bool]] = {
    "fig3": fig3,
    "fig5": fig5,
    "fig6": fig6,
    "fig7": fig7,
    "table3": table3,
    "fig8": fig8,
    "fig9": fig9,
    "sensitivity": sensitivity,
}
