"""Whether CPU workers read ahead into their caches, and which experts of the next layer: what the
CPU may be given there. Compiled, over the buffer."""

from __future__ import annotations

from moesaic.policies.brain import fields as at
from moesaic.policies.brain.forecasts import likelihoods
from moesaic.policies.compiled import compiled
from moesaic.policies.prefetch.base import MOST_READ_AHEAD
from moesaic.policies.timelines import Ints

IDLE_LAYERS = 256  # without CPU experts, after which none is expected


@compiled
def choose_read_ahead(s: Ints) -> int:
    """After a layer: how many candidates AHEAD_IDS has, the likeliest first; 0: nothing is read. Of
    those that are not under way to the GPU, READ_AHEAD are to be read. A body with forecasts takes
    theirs instead: nothing is predicted for it."""
    on_cpu = at.ints(s, at.PLAN)[1]
    s[at.CPU_IDLE_LAYERS] = 0 if on_cpu else min(s[at.CPU_IDLE_LAYERS], IDLE_LAYERS) + 1
    if s[at.READ_AHEAD] == 0 or s[at.TOKENS] != 1 or s[at.LAYER] + 1 == s[at.LAYERS]:
        return 0
    if s[at.CPU_IDLE_LAYERS] > IDLE_LAYERS:
        return 0
    return MOST_READ_AHEAD if s[at.BODY_FORECASTS] else _rank_absent(s)


@compiled
def _rank_absent(s: Ints) -> int:
    """Experts of the next layer that are not on the GPU, by likelihood; returns how many."""
    later, experts = s[at.LAYER] + 1, s[at.EXPERTS]
    likely = likelihoods(s)
    resident = at.octets(s, at.RESIDENT)[later * experts : (later + 1) * experts]
    ids = at.ints(s, at.AHEAD_IDS)
    held = 0
    for expert in range(experts):
        full = held == MOST_READ_AHEAD
        if resident[expert] or (full and likely[expert] <= likely[ids[held - 1]]):
            continue
        place = held - 1 if full else held
        while place > 0 and likely[ids[place - 1]] < likely[expert]:
            ids[place] = ids[place - 1]
            place -= 1
        ids[place] = expert
        held = min(held + 1, MOST_READ_AHEAD)
    return int(held)
