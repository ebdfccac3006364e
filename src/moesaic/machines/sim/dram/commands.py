"""The commands of a sub-channel, and the columns of a command trace."""

from __future__ import annotations

ACT, RD, WR, PRE, REF = range(5)
COMMANDS = ("ACT", "RD", "WR", "PRE", "REF")

# Columns of a trace. `REQUEST` is the request a command serves, or NO_REQUEST for a refresh's;
# `BANK` counts over the sub-channel, and is NO_BANK for REF; `ROW` is that of ACT, RD and WR.
CYCLE, COMMAND, RANK, BANK, ROW, REQUEST = range(6)
TRACE_COLUMNS = 6
NO_REQUEST = NO_BANK = NO_ROW = -1
