"""Do simulator and makespan model agree wherever a conclusion rests on the former? Every simulated
run of figures 6, 8 and 9, of the readings, the headline, the sensitivity and migration rows, small
batches and real routing, by both; per figure and contention rule the least, the median and
the largest of makespan model over simulator, the share of runs that are more than 5 % apart, and
which runs are furthest apart. The same by system.

Only where the KV cache lies in main memory there is no second body: equations 1 to 8 have none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from statistics import median

from moesaic.machines.sim.kv_cache import IN_GPU_MEMORY
from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, again, outcome
from moesaic.reproductions.trimoe.runs import CACHE_RATIO, MAKESPAN, SIMULATOR, Run

PARTS = (
    "fig6/", "readings/", "headline/", "memory/", "fig8/", "fig9/", "sensitivity/", "migration/",
    "sec5.5/batch-", "real/",
)  # fmt: skip
CLOSE = 0.05  # bodies are apart where they differ by more
WORST = 4  # runs that are named
VALUES: dict[str, Callable[[list[float]], float]] = {
    "least": min,
    "median": median,
    "largest": max,
    "apart": lambda found: sum(abs(each - 1) > CLOSE for each in found) / len(found),
    "runs": len,
}
UNITS = {"apart": "share", "runs": "runs"}


def wanted(rows: Iterable[Claim], traces: str | None = None) -> Iterator[Claim]:
    """`rows` are all others."""
    groups: dict[str, dict[Run, None]] = {}
    for row in rows:
        part = next((part for part in PARTS if row.id.startswith(part)), None)
        for run in row.items if part is not None else ():
            if compared(run):
                name = f"{str(part).rstrip('/').removesuffix('/batch-')}@{run.rule}"
                groups.setdefault(name, {})[replace(run, timed=False)] = None
    every = {run: None for runs in groups.values() for run in runs}
    for run in every:
        if run.work.trace is None:
            size = "small" if run.work.batch in paper.SMALL_BATCHES else "large"
            groups.setdefault(f"{size}-batches:{run.system}", {})[run] = None
    for name, runs in {**groups, "all": every}.items():
        for value in VALUES if runs else ():
            yield _row(name, value, list(runs), traces if "real" in name else None)


def compared(item: object) -> bool:
    """Whether there are both bodies of it."""
    return isinstance(item, Run) and item.body == SIMULATOR and item.kv_cache == IN_GPU_MEMORY


def _row(group: str, value: str, runs: list[Run], traces: str | None) -> Claim:
    pairs = [(replace(run, body=MAKESPAN), run) for run in runs]
    name = f"spread/{group}/{value}"

    def row(done: Done) -> Row:
        found = {
            run: outcome(done, model).layer_ms / outcome(done, run).layer_ms for model, run in pairs
        }
        apart = sorted(found, key=lambda run: abs(found[run] - 1), reverse=True)[:WORST]
        worst = ", ".join(f"{named(run)} {found[run]:.3f}" for run in apart)
        claim = f"MoE layer by the makespan model over the simulator's, {value} of {len(runs)} runs"
        text = f"{group.partition('@')[0]}; furthest apart: {worst}"
        ours, unit = VALUES[value](list(found.values())), UNITS.get(value, "x")
        return Row(name, claim, None, ours, unit, text, again(name, traces))

    return Claim(name, tuple(run for pair in pairs for run in pair), row)


def named(run: Run) -> str:
    """A run by what it differs in from others."""
    work = run.work
    words = [f"{work.model}/{'real' if work.trace else work.data}/{work.batch}/{run.system}"]
    words += [f"{key}={value}" for key, value in run.changes if not work.trace]
    if run.cache_ratio != CACHE_RATIO and not work.trace:
        words.append(f"cache={run.cache_ratio:.3f}")
    if not run.shared:
        words.append("unshared")
    if run.pipelined is not None:
        words.append("pipelined")
    if run.gpu_memory_gb is None:
        words.append("in the paper's 80 GB")
    if work.seed:
        words.append(f"seed={work.seed}")
    return " ".join(words) + f"@{run.rule}"
