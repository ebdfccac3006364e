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
    group=0,
    first=NONE,  # its waiting requests: oldest slot
    last=NONE,  # youngest slot
    hit_rd=NONE,  # oldest slot that reads the open row
    hit_wr=NONE,  # oldest slot that writes the open row
    reads=0,  # waiting
    writes=0,  # waiting
    place=NONE,  # where it stands in the list of banks with waiting requests
)
_GROUP = record(
    act_from=0,  # by nRRD_L
    rd_from=0,  # by nCCD_L, nWTR_L
    wr_from=0,  # by nCCD_L_WR
)
_RANK = record(
    act_from=0,  # by nRRD_S, nFAW, nRFC
    rd_from=0,  # by nCCD_S, nWTR_S, rank switch
    wr_from=0,  # by nCCD_S, nRTW, rank switch
    ref_from=0,  # by nRP, nRC, nRFC
    last_act=LONG_AGO,
    second_act=LONG_AGO,  # the one before the last
    third_act=LONG_AGO,
    open_banks=0,
    due=0,  # when its next refresh falls due
)
_BUS = record(command_from=FIRST_CYCLE)


class SubChannelState(NamedTuple):
    banks: Records
    groups: Records
    ranks: Records
    bus: Records  # [1]


def fresh_state(geometry: Geometry) -> SubChannelState:
    """Every bank closed, nothing issued, nobody waiting."""
    groups = geometry.ranks * geometry.bank_groups
    state = SubChannelState(
        banks=records(groups * geometry.banks, _BANK),
        groups=records(groups, _GROUP),
        ranks=records(geometry.ranks, _RANK),
        bus=records(1, _BUS),
    )
    numbers = np.arange(len(state.banks))
    state.banks["rank"] = numbers // geometry.banks_per_rank
    state.banks["group"] = numbers // geometry.banks
    return state


def records(count: int, kind: tuple[np.dtype[Any], dict[str, int]]) -> Records:
    made = np.zeros(count, kind[0])
    for name, value in kind[1].items():
        made[name] = value
    return made
