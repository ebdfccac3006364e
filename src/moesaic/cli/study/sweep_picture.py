"""A sweep as lines: tokens per second over the first swept number, one line per system, one panel
per combination of everything else (machine, cache ratio, other sweeps)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
from moesaic.cli.shared.what_if_options import changes_text
from moesaic.cli.study.compare_picture import short_label, style
from moesaic.cli.study.compare_tables import workload_words
from moesaic.cli.study.comparison import ComparisonCell
from moesaic.core.errors import ImpossibleSetting

MAX_PANELS = 24
_MAX_COLUMNS = 4
_MARKERS = "os^Dv<>Ph*"
RUN_LABELS = {
    "batch": "batch size in sequences",
    "context": "context in tokens",
    "tokens": "tokens of the run",
    "cache_ratio": "share of the experts in GPU memory",
    "expert_dtype": "precision of the experts",
}
LOG_FROM = 12.0  # largest over smallest value from which a scale is logarithmic


class Panel(NamedTuple):
    title: str
    cells: list[ComparisonCell]


def draw_sweep(path: str, cells: Sequence[ComparisonCell]) -> None:
    shown = panels(cells)
    labels = list(dict.fromkeys(cell.label for cell in cells))
    columns = min(_MAX_COLUMNS, len(shown)) if len(shown) != 4 else 2
    rows = -(-len(shown) // columns)
    width = max(6.5, 3.6 * columns)
    figure = new_figure(width, 1.0 + 2.8 * rows)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for panel, each in zip(shown, axes, strict=False):
        _draw(each, panel, labels, list(dict.fromkeys(c.swept[0][1] for c in cells)))
    for each in axes[len(shown) :]:
        each.set_visible(False)
    _scale_speed(axes[0], cells)
    title_above(figure, _title(cells))
    legend_below(figure, axes[0].get_lines(), title="\n".join(_left_out(cells)) or None)
    save(figure, path)


def panels(cells: Sequence[ComparisonCell]) -> list[Panel]:
    """Panels by everything but the first sweep and the system."""
    machines = len({cell.machine for cell in cells}) > 1
    ratios = len({cell.cache_ratio for cell in cells}) > 1
    ratios &= all(name != "cache_ratio" for name, _ in cells[0].swept)
    found: dict[str, list[ComparisonCell]] = {}
    for cell in cells:
        words = [cell.machine] if machines else []
        words += [f"{100 * cell.cache_ratio:.3g} % of experts in GPU memory"] if ratios else []
        words += [changes_text((pair,)) for pair in cell.swept[1:]]
        found.setdefault(", ".join(words), []).append(cell)
    if len(found) > MAX_PANELS:
        raise ImpossibleSetting(
            f"--plot would need {len(found)} panels; at most {MAX_PANELS} can be read: sweep fewer "
            "values, and the longest list first, which becomes the horizontal axis"
        )
    return [Panel(title, each) for title, each in found.items()]


def _draw(axes: Any, panel: Panel, labels: Sequence[str], values: Sequence[Any]) -> None:
    numeric = all(isinstance(value, (int, float)) for value in values)
    for index, label in enumerate(labels):
        line = [cell for cell in panel.cells if cell.label == label]
        x = [cell.swept[0][1] if numeric else values.index(cell.swept[0][1]) for cell in line]
        y = [_speed(cell) for cell in line]
        marker = _MARKERS[index % len(_MARKERS)]
        drawn = {"color": style(index)["facecolor"], "marker": marker, "markersize": 4}
        axes.plot(x, y, label=short_label(label), linewidth=1.4, zorder=2, **drawn)
    if numeric:
        if min(values) > 0 and max(values) >= LOG_FROM * min(values):
            axes.set_xscale("log", base=2)
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.set_xticks([], minor=True)
    else:
        axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_title(panel.title, loc="left", fontsize=9, color=INK)
    axes.set_xlabel(_axis_label(panel.cells), color=FAINT, fontsize=9)
    axes.set_ylabel("tokens per second", color=FAINT, fontsize=9)
    axes.label_outer()
    axes.grid(axis="y", color=GRID, linewidth=0.6, zorder=0)
    plain(axes)


def _axis_label(cells: Sequence[ComparisonCell]) -> str:
    """The swept number and its unit: of a run, or as the machine's description has it."""
    from moesaic.hardware.what_if import described_names

    name = cells[0].swept[0][0]
    if name in RUN_LABELS:
        return RUN_LABELS[name]
    settings = next((cell.settings for cell in cells if cell.settings is not None), None)
    known = {} if settings is None else described_names(settings.machine)
    return f"{name} in {known[name].unit}" if name in known and known[name].unit else name


def _speed(cell: ComparisonCell) -> float:
    """A gap in the line where there is no result."""
    return float("nan") if cell.result is None else float(cell.result["tokens_per_s"])


def _scale_speed(axes: Any, cells: Sequence[ComparisonCell]) -> None:
    """Scale from zero, unless the slowest could then not be distinguished from it. Axes are
    shared."""
    speeds = [_speed(cell) for cell in cells if cell.result is not None]
    if max(speeds) >= LOG_FROM * min(speeds):
        from matplotlib.ticker import LogLocator

        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("")
    else:
        axes.set_ylim(0, 1.08 * max(speeds))


def _title(cells: Sequence[ComparisonCell]) -> str:
    result = next(cell.result for cell in cells if cell.result is not None)
    machine = {cell.machine for cell in cells}
    where = f" on {machine.pop()}" if len(machine) == 1 else ""
    return f"Simulated tokens per second: {result['model']}{where}\n{workload_words(cells)}"


def _left_out(cells: Sequence[ComparisonCell]) -> list[str]:
    """Which lines have gaps, and at what values."""
    gaps: dict[str, list[str]] = {}
    for cell in cells:
        if cell.skipped is not None:
            name, value = cell.swept[0]
            at = changes_text(((name, value),))
            if at not in gaps.setdefault(cell.label, []):
                gaps[cell.label].append(at)
    return [f"{label} left out at {', '.join(at)}" for label, at in gaps.items()]
