"""Settings every test shares. Its place also makes `made_up` importable from all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

# Triton's kernels run in its interpreter where there is no GPU. Triton reads this when it is
# imported, and a test's own imports may come after another's.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# No test asks the real hub; those with one of their own allow it (`hub_server.py`).
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "moesaic",
    deadline=None,  # the first call compiles
    derandomize=True,  # the same examples everywhere
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("moesaic")

_LOCKING = "moesaic.machines.cuda.pinned"


@pytest.fixture(autouse=True)
def _nothing_stays_locked() -> Iterator[None]:
    """A test that fails between opening and closing a CUDA machine leaves its store locked for the
    GPU, and the tests after it fail for that. What fixtures of a module hold was there before."""
    locking = sys.modules.get(_LOCKING)
    before = () if locking is None else locking.held()
    yield
    if _LOCKING in sys.modules:
        sys.modules[_LOCKING].close_others(before)
