"""Hosts by cache ratios; every cell names the fastest system there, and by how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from textwrap import fill
from typing import Any

from moesaic.cli.shared.pictures import (
    FAINT,
    INK,
    legend_below,
    new_figure,
    save,
    title_above,
)
from moesaic.cli.study.compare_tables import workload_words
from moesaic.cli.study.comparison import ComparisonCell
from moesaic.cli.study.winners import CLEARLY, Winner, winners
from moesaic.hardware.machine_spec import MachineSpec

# Okabe and Ito's colours, which differ for colour-blind eyes too; light ones get dark letters.
_PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
_LEVEL, _EMPTY = "#d9d9d9", "#f5f5f5"
_COLUMN_IN, _ROW_IN, _HOST_IN = 2.15, 0.78, 3.3
_LETTERS = 40  # of a line of small print in a cell
_STATIC = {"ktransformers": "static placement"}  # what the usual baseline stands for
_GAP = 0.03  # between cells, as a share of one


def draw_winners(path: str, cells: Sequence[ComparisonCell], baseline: str) -> None:
    found = winners(cells, baseline)
    machines = list(dict.fromkeys(each.machine for each in found))
    ratios = sorted({each.cache_ratio for each in found if not each.unified}) or [1.0]
    labels = list(dict.fromkeys(cell.label for cell in cells))
    colours = {label: _PALETTE[at % len(_PALETTE)] for at, label in enumerate(labels)}
    size = _HOST_IN + _COLUMN_IN * len(ratios), 1.5 + _ROW_IN * len(machines)
    figure = new_figure(*size)
    axes = figure.subplots()
    for each in found:
        row = machines.index(each.machine)
        at, width = (0, len(ratios)) if each.unified else (ratios.index(each.cache_ratio), 1)
        _cell(axes, each, baseline, colours, (at, row, width))
    _scales(axes, machines, ratios, cells)
    title_above(figure, _title(cells, baseline))
    legend_below(figure, _legend(found, labels, colours))
    save(figure, path)


def _cell(
    axes: Any,
    winner: Winner,
    baseline: str,
    colours: Mapping[str, str],
    where: tuple[int, int, int],
) -> None:
    from matplotlib.patches import Rectangle

    column, row, width = where
    colour = _EMPTY if winner.skipped is not None else colours[winner.system]
    colour = colour if winner.clear or winner.skipped is not None else _LEVEL
    corner = column - 0.5 + _GAP, row - 0.5 + _GAP
    axes.add_patch(Rectangle(corner, width - 2 * _GAP, 1 - 2 * _GAP, color=colour, linewidth=0))
    middle = column + (width - 1) / 2
    ink = _ink_on(colour)
    text = {"ha": "center", "va": "center", "color": ink}
    if winner.skipped is not None:
        words = fill(reason(winner.skipped), _LETTERS * width)
        axes.text(middle, row, words, fontsize=6.5, **{**text, "color": FAINT})
        return
    lines = [f"{winner.tokens_per_s:.0f} tokens/s", *_factors(winner, baseline)]
    if winner.unified:  # wide enough for all factors in a line
        lines = [", ".join(lines), "one memory: the GPU reads every expert where it lies"]
    axes.text(middle, row - 0.25, headline(winner), fontsize=10, weight="bold", **text)
    axes.text(middle, row + 0.16, "\n".join(lines), fontsize=7.5, linespacing=1.25, **text)


def headline(winner: Winner) -> str:
    """The fastest, or those that cannot be distinguished."""
    return winner.system if winner.clear else f"{winner.system} = {winner.following}"


def _factors(winner: Winner, baseline: str) -> list[str]:
    found = []
    if winner.over_baseline is not None and winner.system != baseline:
        found.append(f"{winner.over_baseline:.2f} x {_STATIC.get(baseline, baseline)}")
    if winner.over_next is not None and winner.following != baseline:
        found.append(f"{winner.over_next:.2f} x {winner.following}, the next")
    return found


def reason(skipped: str) -> str:
    """Why nothing runs, without what to do about it."""
    return skipped.partition(". Use ")[0].partition("; use ")[0]


def _ink_on(colour: str) -> str:
    """Dark letters on light colours, white on dark ones (relative luminance of sRGB)."""
    from matplotlib.colors import to_rgb

    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in to_rgb(colour)]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    return INK if luminance > 0.2 else "white"


def _scales(
    axes: Any, machines: Sequence[str], ratios: Sequence[float], cells: Sequence[ComparisonCell]
) -> None:
    specs = {c.machine: c.settings.machine for c in cells if c.settings is not None}
    axes.set_xlim(-0.5, len(ratios) - 0.5)
    axes.set_ylim(len(machines) - 0.5, -0.5)
    axes.set_xticks(range(len(ratios)), [f"{100 * ratio:.3g} %" for ratio in ratios])
    names = [_host(machine, specs.get(machine)) for machine in machines]
    axes.set_yticks(range(len(machines)), names, fontsize=8)
    axes.set_xlabel("share of the experts in GPU memory", color=FAINT, fontsize=9)
    axes.set_ylabel("host", color=FAINT, fontsize=9)
    axes.tick_params(colors=INK, length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def _host(machine: str, spec: MachineSpec | None) -> str:
    """What it is, and the two speeds that decide: the CPU's reads and the link's."""
    if spec is None:
        return machine
    reads = round(spec.cpu.effective_bandwidth_gb_s)
    link = "" if spec.unified is not None else f", link {spec.pcie.bandwidth_gb_s:.0f}"
    speeds = f"CPU reads {reads} GB/s{link}"
    return f"{fill(spec.title, 40)}\n{speeds}"


def _title(cells: Sequence[ComparisonCell], baseline: str) -> str:
    result = next(cell.result for cell in cells if cell.result is not None)
    words = f"The fastest system, simulated: {result['model']}, {workload_words(cells)}"
    named = f"\nstatic placement: {baseline}" if baseline in _STATIC else ""
    return f"{words}{named}"


def _legend(
    found: Sequence[Winner], labels: Sequence[str], colours: Mapping[str, str]
) -> list[Any]:
    from matplotlib.patches import Patch

    won = {each.system for each in found if each.clear and each.skipped is None}
    handles = [Patch(label=label, color=colours[label]) for label in labels if label in won]
    if any(not each.clear for each in found):
        margin = round(100 * (CLEARLY - 1))
        handles.append(Patch(label=f"within {margin} % of the next: level", color=_LEVEL))
    if any(each.skipped is not None for each in found):
        handles.append(Patch(label="cannot run", facecolor=_EMPTY, edgecolor=FAINT))
    return handles
