"""What deciding costs in virtual time: a simulated machine charges it to every layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from moesaic.core.units import ns_from_us
from moesaic.hardware.machine_spec import PlannerSpec


class PlanningCost(NamedTuple):
    """Nanoseconds by tokens and active experts of a layer. The layer waits for the decision; the
    look-ahead only delays the transfers it chooses."""

    decision_ns: Callable[[int, int], int]
    lookahead_ns: Callable[[int, int], int]

    @classmethod
    def constant(cls, decision_ns: int = 0, lookahead_ns: int = 0) -> PlanningCost:
        return cls(lambda tokens, active: decision_ns, lambda tokens, active: lookahead_ns)

    @classmethod
    def of(
        cls, planner: PlannerSpec, decides: bool = True, looks_ahead: bool = True
    ) -> PlanningCost:
        """What deciding costs on the described machine, to a system that does so at run time."""

        def decision_ns(tokens: int, active: int) -> int:
            return ns_from_us(planner.fixed_us + planner.per_expert_us * active)

        def lookahead_ns(tokens: int, active: int) -> int:
            return ns_from_us(planner.lookahead_us + planner.lookahead_per_token_us * tokens)

        nothing = cls.constant()
        return cls(
            decision_ns if decides else nothing.decision_ns,
            lookahead_ns if looks_ahead else nothing.lookahead_ns,
        )


FREE = PlanningCost.constant()
