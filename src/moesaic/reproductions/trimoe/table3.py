"""Table 3: utilisation of GPU, CPU and NDP units, which the paper does not define. Three ways:

- `busy`: time in which the device does anything (attention and shared experts included) over the
  time of the decode steps;
- `experts`: time in which it computes experts over the time of the MoE layers' experts;
- `flops`: floating-point operations of the experts it computed over what its peak allows in the
  MoE layers' time.

Of the units it is the mean."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from statistics import fmean

from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, again, outcome
from moesaic.reproductions.trimoe.runs import Run, Workload

WAYS = {
    "busy": "busy time over the decode steps' time",
    "experts": "time computing experts over the MoE layers' time",
    "flops": "experts' operations over the peak's in the MoE layers' time",
}
BATCH = 512


def utilisation(done: Done, run: Run, device: str, way: str) -> float:
    found: dict[str, float] = getattr(outcome(done, run), way)
    return found.get(device, 0.0)


def wanted() -> Iterator[Claim]:
    for rule, way in product(paper.RULES, WAYS):
        for system in (*paper.UTILISATION, paper.BEYOND):
            stated = paper.UTILISATION.get(system, paper.UTILISATION[paper.OURS])
            for device, share in stated.items():
                if share is not None:
                    known = share if system in paper.UTILISATION else None
                    yield _row(f"{system}/{device}", system, (device,), way, rule, known)
        name, mean = f"{paper.OURS}/mean", paper.MEAN_UTILISATION
        yield _row(name, paper.OURS, ("gpu", "cpu", "ndp"), way, rule, mean)


def _row(
    name: str, system: str, devices: tuple[str, ...], way: str, rule: str, stated: float | None
) -> Claim:
    runs = tuple(Run(Workload(m, BATCH), system, rule, timed=True) for m in paper.MODELS)
    name = f"table3/{name}/{way}@{rule}"

    def row(done: Done) -> Row:
        shares = [utilisation(done, run, device, way) for run in runs for device in devices]
        claim = f"utilisation under {system} ({way}): {', '.join(devices)}"
        text = f"{WAYS[way]}, mean over three models; {runs[1].words}"
        return Row(name, claim, stated, fmean(shares), "share", text, again(name))

    return Claim(name, runs, row)
