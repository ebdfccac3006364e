"""TriMoE's figures from rows. Knows matplotlib and the rows' ids, and nothing of simulation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from moesaic.cli.shared.pictures import FAINT, GRID, INK, new_figure, plain, save
from moesaic.cli.study.reproduce_trimoe import RULES, Lines, pivot
from moesaic.cli.study.routing_label import named, titled

if TYPE_CHECKING:
    from moesaic.reproductions.row import Row

COLOURS = ("#3b7dc4", "#d9662b", "#5b9e5b", "#8c6bb1", "#c9a227", "#4aa5a5")
PAPER = "#444444"
MODELS = {"deepseek-v2": "DeepSeek-V2", "qwen3-235b-a22b": "Qwen3-235B-A22B"}
MODELS["glm-4.5-air"] = "GLM-4.5-Air"
SYSTEMS = ("enhanced-ktransformers", "monde", "trimoe", "tri-balanced")
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


def legend(figure: Any, names: Sequence[str]) -> None:
    from matplotlib.patches import Patch

    colours = [
        PAPER if name == "paper" else COLOURS[i % len(COLOURS)] for i, name in enumerate(names)
    ]
    handles = [Patch(color=c, label=n) for c, n in zip(colours, names, strict=True)]
    figure.legend(handles=handles, loc="outside lower center", ncols=min(len(names), 5), fontsize=8)


def fig3(path: str, rows: Sequence[Row]) -> bool:
    """Shares of tokens, stacked, by model, data set and batch."""
    lines = pivot(rows, "fig3/", "/") | {
        f"real/{name}": line for name, line in pivot(rows, "real/fig3/", "/").items()
    }
    lines.pop("average", None)
    if not lines:
        return False
    figure = new_figure(9.0, 1.6 + 0.22 * len(lines))
    axes = figure.subplots()
    names = list(lines)[::-1]
    left = [0.0] * len(names)
    for colour, kind in zip(COLOURS, ("hot", "warm", "cold"), strict=False):
        values = [lines[name].get(kind, 0.0) for name in names]
        axes.barh(names, values, left=left, color=colour, label=kind, zorder=2)
        for at, value in enumerate(values):
            where = left[at] + value / 2
            axes.text(
                where, at, f"{value:.2f}", ha="center", va="center", fontsize=6.5, color="white"
            )
            left[at] += value
    of = [row for row in rows if row.id.startswith(("fig3/", "real/fig3/"))]
    title = titled("Fig. 3: share of tokens by class of experts", of)
    axes.set_title(title, loc="left", fontsize=10)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_xlabel("share of tokens (paper: cold 0.08, warm up to 0.70)", color=FAINT, fontsize=8)
    plain(axes)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
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
    axes.set_xlabel("tokens of the expert", color=FAINT)
    axes.set_ylabel("TFLOPS", color=FAINT)
    axes.set_title("Fig. 5: throughput of one Qwen3-235B expert", loc="left", fontsize=10)
    axes.grid(color=GRID, linewidth=0.6, zorder=0)
    plain(axes)
    axes.legend(fontsize=8, frameon=False)
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
    return _panels(path, panels, SYSTEMS, title, "times faster than Klotski")


def _panels(
    path: str, panels: dict[str, Lines], columns: Sequence[str], title: str, unit: str
) -> bool:
    if not panels:
        return False
    figure = new_figure(max(6.0, 4.6 * len(panels)), 4.2)
    every = figure.subplots(1, len(panels), squeeze=False, sharey=True).ravel()
    top = 0.0  # they share an axis, whose limits each panel sets for itself
    for axes, (name, lines) in zip(every, panels.items(), strict=True):
        grouped(axes, lines, columns)
        axes.set_title(name, loc="left", fontsize=10, color=INK)
        top = max(top, axes.get_ylim()[1])
    every[0].set_ylim(0, top)
    every[0].set_ylabel(unit, color=FAINT)
    figure.suptitle(title, fontsize=11, color=INK)
    legend(figure, columns)
    save(figure, path)
    return True


def with_paper(rows: Sequence[Row], start: str) -> Lines:
    """By rule, the paper's value in front."""
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
    return _panels(path, panels, (*RULES, "paper"), title, "times the throughput")


def fig8(path: str, rows: Sequence[Row]) -> bool:
    panels = {data: with_paper(rows, f"fig8/{data}/") for data in ("chat", "code", "steady")}
    panels = {data: lines for data, lines in panels.items() if lines}
    title = "Fig. 8: gain of each part over the stage before it, batch 512, mean of three models"
    title = named(title, rows, "fig8/")
    return _panels(path, panels, (*RULES, "paper"), title, "times faster")


def fig9(path: str, rows: Sequence[Row]) -> bool:
    """Two panels: units, CPU speed; one line per system and rule."""
    found = {what: pivot(rows, f"fig9/{what}/", "@") for what in ("ndp", "cpu")}
    if not all(found.values()):
        return False
    figure = new_figure(9.0, 4.0)
    labels = {"ndp": "NDP units", "cpu": "CPU TFLOPS over AMX's 90.1"}
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
        axes.set_xlabel(labels[what], color=FAINT)
        axes.set_ylabel("latency over the paper's machine", color=FAINT)
        axes.grid(color=GRID, linewidth=0.6, zorder=0)
        plain(axes)
    title = named("Fig. 9: MoE layer of Qwen3-235B-A22B, batch 512", rows, "fig9/")
    figure.suptitle(title, fontsize=11, color=INK)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    save(figure, path)
    return True


def table3(path: str, rows: Sequence[Row]) -> bool:
    """One panel per definition, under the default rule."""
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
    figure = new_figure(10.0, 2.9 * len(panels))
    every = figure.subplots(len(panels), 1, squeeze=False).ravel()
    for axes, (way, lines) in zip(every, panels.items(), strict=True):
        short = {n.replace("enhanced-ktransformers", "en-kt"): line for n, line in lines.items()}
        grouped(axes, short, ("ours", "paper"))
        axes.set_title(f"utilisation, {way}", loc="left", fontsize=10, color=INK)
    title = named("Table 3: utilisation by three definitions, own-share", rows, "table3/")
    figure.suptitle(title, fontsize=11, color=INK)
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
    axes.set_title(title, loc="left", fontsize=10)
    plain(axes)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
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
