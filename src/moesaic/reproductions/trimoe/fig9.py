"""Figure 9: latency of a MoE layer by the number of NDP units and by the CPU's speed, over that of
the machine as it is. The paper shows curves without numbers: flat from 16 units and from half of
AMX on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from moesaic.hardware.machine_reader import load_machine
from moesaic.reproductions.row import Row
from moesaic.reproductions.trimoe import paper
from moesaic.reproductions.trimoe.claims import Claim, Done, again, outcome
from moesaic.reproductions.trimoe.runs import Run, Workload

WORK = Workload(paper.QWEN, 512)
SYSTEMS = (paper.OURS, paper.BEYOND)
Changes = tuple[tuple[str, float | str], ...]


def wanted() -> Iterator[Claim]:
    amx = load_machine(paper.MACHINE).cpu.matmul_tflops["bf16"]
    for rule in paper.RULES:
        for system in SYSTEMS:
            base = Run(WORK, system, rule)
            for count in paper.NDP_COUNTS:
                yield _row(f"ndp/{count}", f"{count} NDP units", base, units(count))
            for factor in paper.CPU_FACTORS:
                changes: Changes = () if factor == 1 else (("cpu.tflops", factor * amx),)
                yield _row(f"cpu/{factor:g}", f"{factor:g} times the CPU's TFLOPS", base, changes)


def units(count: int) -> Changes:
    """Units in the first DIMMs; more than 16 need more DIMMs on the same channels."""
    if count == 16:
        return ()
    more: Changes = (("dimms.count", count),) if count > 16 else ()
    return (*more, ("ndp.count", count))


def _row(name: str, words: str, base: Run, changes: Changes) -> Claim:
    run = replace(base, changes=changes)
    name = f"fig9/{name}/{base.system}@{base.rule}"

    def row(done: Done) -> Row:
        ours, whole = outcome(done, run).layer_ms, outcome(done, base).layer_ms
        claim = f"latency of a MoE layer under {base.system} with {words}, over the paper's machine"
        text = f"{ours:.3f} ms; {run.words}"
        return Row(name, claim, None, ours / whole, "x", text, again(name))

    return Claim(name, (run, base), row)
