"""One server of the bundled model for all tests that leave it as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from servers import Server, server


@pytest.fixture(scope="session")
def shared() -> Iterator[Server]:
    with server("--keep-alive-s", 0.2, "--max-body-mb", 0.1, "--log", "json") as made:
        yield made
