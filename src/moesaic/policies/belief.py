"""What the brain believes things cost: tables per device and token count, in nanoseconds.

Belief is not truth. It comes from measuring a machine (`warm_up`, HybriMoE's warm-up phase),
from a description, or from a test that wants it wrong; the policies never see anything else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from moesaic.core.body import Body
from moesaic.core.offloading import CPU, GPU
from moesaic.policies.timelines import Ints


@dataclass(frozen=True, slots=True)
class Belief:
    """`tables[0, t]` is what one expert with t tokens costs on the GPU, `tables[1, t]` on the
    CPU, up to the largest batch; the first CPU expert of a layer costs `cpu_first_ns` more.
    `decision_ns` passes between a view and the start of the plan made from it."""

    tables: Ints  # [2, max tokens + 1]
    cpu_first_ns: int
    transfer_ns: int
    decision_ns: int = 0

    @classmethod
    def from_points(
        cls,
        gpu: Mapping[int, int],
        cpu: Mapping[int, int],
        cpu_first_ns: int,
        transfer_ns: int,
        max_tokens: int,
    ) -> Belief:
        """Tables from a few measured token counts: straight lines between them and beyond."""
        tables = np.stack([_table(gpu, max_tokens), _table(cpu, max_tokens)])
        return cls(tables, cpu_first_ns, transfer_ns)

    def covering(self, tokens: int) -> Belief:
        """The same belief, with tables for at least so many tokens: beyond the last count, costs
        go on rising as they did before it."""
        known = self.tables.shape[1] - 1
        if tokens <= known:
            return self
        more = np.arange(1, max(tokens, 2 * known) - known + 1)
        slope = self.tables[:, -1] - self.tables[:, -2] if known > 1 else self.tables[:, -1]
        beyond = self.tables[:, -1:] + slope[:, None] * more
        return replace(self, tables=np.concatenate([self.tables, beyond], axis=1))


def _table(points: Mapping[int, int], max_tokens: int) -> Ints:
    known = sorted(points)
    assert min(points) >= 1, "a cost table starts at one token"
    tokens = np.arange(max_tokens + 1, dtype=np.float64)
    costs = np.interp(tokens, known, [points[t] for t in known])
    if len(known) > 1 and max_tokens > known[-1]:
        a, b = known[-2], known[-1]
        slope = (points[b] - points[a]) / (b - a)
        beyond = tokens > b
        costs[beyond] = points[b] + slope * (tokens[beyond] - b)
    costs[0] = 0
    return np.maximum(np.rint(costs), 0).astype(np.int64)


def warm_up(body: Body, max_tokens: int) -> Belief:
    """Measure the machine at token counts 1, 2, 4, ... and fill the tables from that.

    One expert and then two tell the first expert's surcharge on the CPU apart."""
    counts = [1 << i for i in range(max_tokens.bit_length())]
    if counts[-1] != max_tokens:
        counts.append(max_tokens)
    one = {t: body.probe(CPU, t, 1) for t in counts}
    two = {t: body.probe(CPU, t, 2) for t in counts}
    following = {t: max(two[t] - one[t], 0) for t in counts}
    first = max(one[1] - following[1], 0)
    return Belief.from_points(
        gpu={t: body.probe(GPU, t, 1) for t in counts},
        cpu=following,
        cpu_first_ns=first,
        transfer_ns=body.probe_transfer(),
        max_tokens=max_tokens,
    )
