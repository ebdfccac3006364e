"""Gates: how many experts each token uses, and whether what came of it stands.

Only a gate may change what a model says: every other policy leaves the logits as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.registry import Registry

if TYPE_CHECKING:  # names and summaries must cost no numpy: `--help` reads them
    from moesaic.policies.gate.base import Gate

gates: Registry[Gate] = Registry("gate")
_HERE = "moesaic.policies.gate"
FULL = "full"  # the model as it was trained

gates.register(FULL, f"{_HERE}.full:Full", "every token uses all of the model's top-k experts")
