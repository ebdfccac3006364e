"""Real routing: gpt-oss-20b and DeepSeek-V2-Lite on a quarter of the paper's host. Only where the
user has the traces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path

from moesaic.core.errors import ImpossibleSetting
from moesaic.model_info.model_zoo import load_model
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Cell, Claim, over_best
from moesaic.reproductions.trimoe.fig3 import shares_of
from moesaic.reproductions.trimoe.fig6 import SYSTEMS
from moesaic.reproductions.trimoe.runs import Run, Workload, check_shape
from moesaic.reproductions.trimoe.sec55 import accuracies
from moesaic.workloads.source import open_trace

TRACES = {
    "gpt-oss-20b": "gpt-oss-20b_decode.npz",
    "deepseek-v2-lite": "deepseek-v2-lite_prefill.npz",
}
BATCHES = (64, 256)
LAYERS = 6
CACHE_RATIO = 1 / 8
# A quarter of the host for experts of 28 and 38 GB: 4 DIMMs on 2 channels, CPU and PCIe to match.
QUARTER: tuple[tuple[str, float | str], ...] = (
    ("dimms.count", 4),
    ("dimms.channels", 2),
    ("ndp.count", 4),
    ("cpu.memory_gb", 512.0),
    ("cpu.memory_bandwidth_gb_s", 76.8),
    ("cpu.tflops", 22.5),
    ("pcie.bandwidth_gb_s", 16.0),
)


def check_folder(folder: str) -> None:
    missing = [name for name in TRACES.values() if not (Path(folder) / name).is_file()]
    if missing:
        raise ImpossibleSetting(
            f"--traces {folder!r} must be a folder with {', '.join(missing)}; leave it out to "
            "replay synthetic routing only"
        )
    for model, name in TRACES.items():
        path = str(Path(folder) / name)
        check_shape(path, open_trace(path).header, load_model(model))


def wanted(folder: str) -> Iterator[Claim]:
    check_folder(folder)
    for (model, name), batch in product(TRACES.items(), BATCHES):
        work = Workload(model, batch, trace=str(Path(folder) / name), layers=LAYERS)
        yield from shares_of(work, f"real/fig3/{model}/{batch}", folder)
        yield from accuracies(work, f"real/predictor/{model}/{batch}", folder)
        for rule, system in product(paper.RULES, SYSTEMS[-2:]):
            run = Run(work, system, rule, changes=QUARTER, cache_ratio=CACHE_RATIO)
            claim = f"{system} over the best baseline, {model}, batch {batch}, real routing"
            row = f"real/{model}/{batch}/{system}@{rule}"
            yield over_best(row, claim, None, [Cell.of(run)], folder)
