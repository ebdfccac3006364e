"""Every expert striped over all of main memory."""

from __future__ import annotations

from moesaic.policies.layout.base import Layout


class Striped(Layout):
    pass
