"""The tables of `moesaic trace`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict

from moesaic.cli.shared.output import print_table
from moesaic.workloads.domains import DOMAINS, domains_of
from moesaic.workloads.header import TraceHeader
from moesaic.workloads.stats.summary import GROUPS, group_of

_MAX_DOMAINS = 12  # listed: real traces have a hundred


def print_header(file: str, header: TraceHeader, totals: Mapping[str, object]) -> None:
    rows = [(key, value) for key, value in asdict(header).items() if key != "metadata"]
    rows += list(totals.items())
    metadata = {key: value for key, value in header.metadata.items() if key != DOMAINS}
    rows += [(f"metadata: {key}", value) for key, value in metadata.items()]
    domains = Counter(domains_of(header)).most_common()
    if domains:
        shown = [f"{name} ({count})" for name, count in domains[:_MAX_DOMAINS]]
        more = [f"{len(domains) - _MAX_DOMAINS} more"] if len(domains) > _MAX_DOMAINS else []
        rows.append((DOMAINS, ", ".join([*shown, *more])))
    print_table(file, ("field", "value"), [(key, str(value)) for key, value in rows])


def print_statistics(statistics: Mapping[str, float]) -> None:
    """One row per kind, its values side by side: the whole picture fits on a screen."""
    rows = []
    for group, meaning in GROUPS.items():
        inside = [(n, v) for n, v in statistics.items() if group_of(n) == group]
        values = ", ".join(f"{name[len(group) + 1 :]} {v:.3f}".strip() for name, v in inside)
        if inside:
            rows.append((group, values, meaning))
    print_table("statistics", ("statistic", "values", "what it is"), rows)


def print_comparison(
    pattern: str, wanted: Mapping[str, float], synthetic: Mapping[str, float]
) -> None:
    """Every statistic both have, side by side; `pattern` says what the wanted ones are of."""
    rows = [
        (name, f"{value:.3f}", f"{synthetic[name]:.3f}", f"{synthetic[name] - value:+.3f}")
        for name, value in _in_order(wanted)
        if name in synthetic
    ]
    columns = ("statistic", pattern, "synthetic", "difference")
    print_table("statistics side by side", columns, rows)


def _in_order(statistics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Statistics by group, as the groups are listed; within one, as they were computed."""
    groups = list(GROUPS)
    return sorted(statistics.items(), key=lambda item: groups.index(group_of(item[0])))
