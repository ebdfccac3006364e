"""Settings every test shares. Its place also makes `invented` importable from all of them."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "moesaic",
    deadline=None,  # the first call compiles
    derandomize=True,  # the same examples everywhere
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("moesaic")
