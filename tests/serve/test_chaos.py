"""One kill of every kind of `python -m benchmarks.chaos`: is what docs/serving.md promises kept?"""

from __future__ import annotations

import pytest

pytest.importorskip("starlette")

from benchmarks.chaos import KINDS, chaos


def test_promises_are_kept_after_a_kill_of_every_kind() -> None:
    found = chaos(len(KINDS))
    assert found.wrong == []
    assert found.kills == {"engine": 1, "front": 1, "client": 1}
    assert found.servers == 2


@pytest.mark.long
def test_promises_are_kept_after_many_kills() -> None:
    """Engines that end twice among them."""
    found = chaos(12, seed=1, kinds=("engine", "engine", "client", "front"))
    assert found.wrong == []
    assert found.kills["engine"] > 2
