"""How far a download is, where standard error is no terminal and the library shows no bar."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from moesaic.core.units import GB
from moesaic.model_info.hub.hub_id import HubId

EVERY_S = 10.0


@contextmanager
def watched(hub_id: HubId, total: int, report: Callable[[str], None]) -> Iterator[None]:
    """A line now and then: what the cache holds of the repository, half-fetched files included."""
    if sys.stderr is not None and sys.stderr.isatty():
        yield
        return
    from huggingface_hub import constants
    from huggingface_hub.file_download import repo_folder_name
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    folder = repo_folder_name(repo_id=hub_id.repo, repo_type="model")
    blobs = Path(constants.HF_HUB_CACHE) / folder / "blobs"
    done = threading.Event()

    def watch() -> None:
        while not done.wait(EVERY_S):
            report(f"fetching {hub_id}: {_bytes(blobs) / GB:.2f} of {total / GB:.2f} GB")

    thread = threading.Thread(target=watch, name="moesaic-fetching", daemon=True)
    shown = not are_progress_bars_disabled()
    thread.start()
    try:
        if shown:
            disable_progress_bars()
        yield
    finally:
        if shown:
            enable_progress_bars()
        done.set()
        thread.join()


def _bytes(folder: Path) -> int:
    size = 0
    with suppress(OSError):
        for file in folder.iterdir():
            with suppress(OSError):  # renamed meanwhile
                size += file.stat().st_size
    return size
