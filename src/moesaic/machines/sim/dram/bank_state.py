"""What the timing rules remember of a sub-channel: per bank, bank group and rank the first cycle
at which each command may be issued. Arrays of records, numbered over the whole sub-channel:

group = rank * bank_groups + bank group; bank = group * banks + bank in its group.

Arrays are passed one by one: numba counts references to every array of a tuple on every access.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from moesaic.machines.sim.dram.timing import Geometry

Ints = NDArray[np.int64]
Records = Any  # an array of one of the records below; numba reads fields as attributes

CLOSED = -1  # in `open_row`: no row is open
NONE = -1  # no slot, no bank, no request
LONG_AGO = -(1 << 40)
FIRST_CYCLE = 1  # no command before it


def record(**fields: int) -> tuple[np.dtype[Any], dict[str, int]]:
    """A record of 64-bit integers, with the value each field begins with."""
    return np.dtype([(name, np.int64) for name in fields]), fields


# "From" is the first cycle at which a rule allows the command; a command may need several.
_BANK = record(
    open_row=CLOSED,
    act_from=0,  # by nRC, nRP
    column_from=0,  # by nRCD
    pre_from=0,  # by nRAS, nRTP, nWR
    rank=0,
    group_gate=0,  # where its bank group's gates begin
    rank_gate=0,  # where its rank's gates begin
    first=NONE,  # its waiting requests: oldest slot
    last=NONE,  # youngest slot
    hit_rd=NONE,  # oldest slot that reads the open row
    hit_wr=NONE,  # oldest slot that writes the open row
    reads=0,  # waiting
    writes=0,  # waiting
)
_RANK = record(
    ref_from=0,  # by nRP, nRC, nRFC
    last_act=LONG_AGO,
    second_act=LONG_AGO,  # the one before the last
    third_act=LONG_AGO,
    open_banks=0,
    due=0,  # when its next refresh falls due
)
_BUS = record(command_from=FIRST_CYCLE)

# Gates: what groups and ranks forbid, one number per command, so that choosing needs no branches.
# A group's ACT, RD, WR by nRRD_L, by nCCD_L and nWTR_L, by nCCD_L_WR; a rank's by nRRD_S, nFAW and
# nRFC, by nCCD_S, nWTR_S and rank switch, by nCCD_S, nRTW and rank switch. Nothing gates PRE.
GATES = 4  # ACT, RD, WR, PRE, as numbered in commands.py


class SubChannelState(NamedTuple):
    banks: Records
    ranks: Records
    gates: Ints  # GATES of each group, then of each rank
    bus: Records  # [1]


def fresh_state(geometry: Geometry) -> SubChannelState:
    """Every bank closed, nothing issued, no request waiting."""
    groups = geometry.ranks * geometry.bank_groups
    state = SubChannelState(
        banks=records(groups * geometry.banks, _BANK),
        ranks=records(geometry.ranks, _RANK),
        gates=np.zeros((groups + geometry.ranks) * GATES, np.int64),
        bus=records(1, _BUS),
    )
    numbers = np.arange(len(state.banks))
    state.banks["rank"] = numbers // geometry.banks_per_rank
    state.banks["group_gate"] = numbers // geometry.banks * GATES
    state.banks["rank_gate"] = (groups + state.banks["rank"]) * GATES
    return state


def records(count: int, kind: tuple[np.dtype[Any], dict[str, int]]) -> Records:
    made = np.zeros(count, kind[0])
    for name, value in kind[1].items():
        made[name] = value
    return made
