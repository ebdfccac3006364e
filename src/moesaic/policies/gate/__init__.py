"""Gates: how many experts each token uses, and whether what came of it stands.

Only a gate may change what a model says: every other policy leaves the logits as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moesaic.core.parameter import Parameter
from moesaic.core.registry import Registry
from moesaic.policies.gate.reuse import REUSES, ROUTE_AGAIN

if TYPE_CHECKING:  # names and summaries must cost no numpy: `--help` reads them
    from moesaic.policies.gate.base import Gate

_HERE = "moesaic.policies.gate"
gates: Registry[Gate] = Registry("gate", contract=f"{_HERE}.base:Gate", arguments=("top_k",))
FULL = "full"  # the model as it was trained
BIG_LITTLE = "big-little"
SELF_SPECULATIVE = "self-speculative"
MEASURES = ("top-probability", "margin", "entropy")  # of confidence, see measures.py
_LITTLE_K = Parameter(
    "k", int, None, "experts of the little model, up to top-k; auto: half of top-k", minimum=1
)

gates.register(FULL, f"{_HERE}.base:Full", "every token uses all of the model's top-k experts")
gates.register(
    "little",
    f"{_HERE}.little:Little",
    "what is generated uses fewer experts; prompts are read with all",
    (_LITTLE_K,),
)
gates.register(
    BIG_LITTLE,
    f"{_HERE}.big_little:BigLittle",
    "MoBiLE: fewer experts, and all of them again where the confidence is not above gamma",
    (
        Parameter(
            "gamma", float, 0.7, "confidence above which a token is kept", minimum=0, maximum=1
        ),
        _LITTLE_K,
        Parameter(
            "confidence", str, "top-probability", "what is compared with gamma", choices=MEASURES
        ),
        Parameter(
            "distance",
            int,
            None,
            "layers ahead of the big pass that experts are prefetched; auto: from measured times",
            minimum=1,
            maximum=3,
        ),
        Parameter(
            "reuse",
            str,
            ROUTE_AGAIN,
            "what the big pass takes from the evicted one: nothing, its experts, or also weights",
            choices=REUSES,
        ),
    ),
)
gates.register(
    SELF_SPECULATIVE,
    f"{_HERE}.self_speculative:SelfSpeculative",
    "drafts with fewer experts, checked by one pass with all: the text is the full model's",
    (
        Parameter("draft", int, 4, "tokens drafted before a check", minimum=1, maximum=16),
        _LITTLE_K,
    ),
)
