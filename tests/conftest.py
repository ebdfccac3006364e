"""Settings every test shares. Its place also makes `made_up` importable from all of them."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent / "serve"))  # its servers are the page's, too
sys.path.insert(0, str(Path(__file__).parent / "hiding"))

from hiding import hide

hide()

# A shell starts background jobs of a script with SIGINT ignored, and child processes inherit that:
# tests that interrupt would wait for nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Triton's kernels run in its interpreter where there is no GPU. Triton reads this when it is
# imported, and a test's own imports may come after another's.
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"

# Tests compute on the CPU unless they name an accelerator, so that they mean the same on a machine
# with a GPU; those about the choice itself take this away.
os.environ["MOESAIC_ACCELERATOR"] = "none"

# pytest-xdist gives its workers the width of its own terminal, and tables would follow it.
os.environ.pop("COLUMNS", None)

# No test asks the real hub; those with one of their own allow it (`hub_server.py`).
os.environ["HF_HUB_OFFLINE"] = "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots",
        metavar="DIRECTORY",
        help="where tests/page writes the pictures of docs/page.md; by default none is kept",
    )


settings.register_profile(
    "moesaic",
    deadline=None,  # the first call compiles
    derandomize=True,  # the same examples everywhere
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("moesaic")

_LOCKING = "moesaic.machines.real.pinned"


@pytest.fixture(autouse=True)
def _nothing_stays_locked() -> Iterator[None]:
    """A test that fails between opening and closing a CUDA machine leaves its store locked for the
    GPU, and the tests after it fail for that. What fixtures of a module hold was there before."""
    locking = sys.modules.get(_LOCKING)
    before = () if locking is None else locking.held()
    yield
    if _LOCKING in sys.modules:
        sys.modules[_LOCKING].close_others(before)


@pytest.fixture(autouse=True)
def _little_is_streamed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that measure memory read a megabyte in tests, not several times the caches: the rate
    says nothing there. How much is read elsewhere is tested in `test_honest_ceilings.py`."""
    if request.path.parent.name == "cli":
        for module in ("bench.rates", "profile.memory_times"):
            monkeypatch.setattr(f"moesaic.lab.{module}.stream_bytes", lambda: 1 << 20)


@pytest.fixture(autouse=True)
def _costs_are_measured_once(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that is opened measures what experts cost, everything five times: a tenth of a
    second, which a thousand tests would wait for. How well it measures is asked in the folder
    `real_machine` alone."""
    probes = sys.modules.get("moesaic.machines.layerwise.probes")
    if probes is not None and request.path.parent.name != "real_machine":
        monkeypatch.setattr(probes, "_TIMES", 1)


@pytest.fixture
def own_policies() -> Iterator[None]:
    """What a test registers, itself or by a plugin, is forgotten after it."""
    from moesaic.core import plugins
    from moesaic.policies.policy_set import REGISTRIES
    from moesaic.policies.systems import EVERY_SYSTEM

    tables: list[dict[str, Any]] = [
        *(registry._entries for registry in REGISTRIES.values()),
        EVERY_SYSTEM,
    ]
    before = [dict(table) for table in tables]
    loaded, path = set(plugins._loaded), list(sys.path)
    plugins.load_installed.cache_clear()
    yield
    for table, entries in zip(tables, before, strict=True):
        table.clear()
        table.update(entries)
    plugins._loaded.clear()
    plugins._loaded.update(loaded)
    sys.path[:] = path


@pytest.fixture(scope="session")
def shared() -> Iterator[Any]:
    """One server of the bundled model for all tests that leave it as it is."""
    for package in ("starlette", "uvicorn", "openai", "anthropic"):
        pytest.importorskip(package)
    from servers import server

    with server("--keep-alive-s", 0.2, "--max-body-mb", 0.1, "--log", "json") as made:
        yield made


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One browser for all tests of the page; each test opens a window with a storage of its own."""
    from browser import Browser, installed

    path = installed()
    if path is None:
        pytest.skip("needs Chromium (Debian: apt-get install chromium)")
    made = Browser(path, tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture(scope="session")
def _scripted_server() -> Iterator[Any]:
    for package in ("starlette", "uvicorn"):
        pytest.importorskip(package)
    from scripted_server import scripted_server

    with scripted_server() as made:
        yield made


@pytest.fixture
def scripted(_scripted_server: Any) -> Any:
    """The page before a scripted model and a scripted engine, as they are at first."""
    _scripted_server.reset()
    return _scripted_server
