"""Settings every test shares. Its place also makes `made_up` importable from all of them."""

from __future__ import annotations

import os
from pathlib import Path

# Triton's kernels run in its interpreter where there is no GPU. Triton reads this when it is
# imported, and a test's own imports may come after another's.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# No test asks the real hub; those with one of their own allow it (`hub_server.py`).
os.environ["HF_HUB_OFFLINE"] = "1"

from hypothesis import HealthCheck, settings

settings.register_profile(
    "moesaic",
    deadline=None,  # the first call compiles
    derandomize=True,  # the same examples everywhere
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("moesaic")
