"""The brain: composes a schedule, a cache and a prefetch policy into one plan per layer.

Everything it remembers stands in records (`policies/records.py`); deciding and looking ahead are
compiled functions of these (`decide.py`, `lookahead.py`), which a native thread can call as C
functions (`c_functions.py`). `Brain` is the handle on them that Python uses."""

from moesaic.policies.brain.brain import Brain

__all__ = ["Brain"]
