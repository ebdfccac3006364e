"""Brings files of a repository into the cache of `huggingface_hub`, which resumes what was
interrupted, and says where they are. Tokens, HF_HOME, HF_ENDPOINT and HF_HUB_OFFLINE count as they
do there.

Where standard error is no terminal and the library shows no bar, lines say how far a download
is."""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from glob import escape
from importlib.util import find_spec
from pathlib import Path

from moesaic.core.errors import CannotFetch
from moesaic.core.units import GB
from moesaic.model_info.hub.cached import missing_files, snapshot
from moesaic.model_info.hub.faults import is_offline, not_in_cache, reported
from moesaic.model_info.hub.hub_id import HubId
from moesaic.model_info.hub.listing import Listing, check_disk, check_reachable, read_listing
from moesaic.model_info.model_files import CONFIG

Report = Callable[[str], None]
_GGUF_READER = "moesaic.model_info.gguf"  # not in every release
_TOKENIZER = "tokenizer.json"
_NAMED = 3  # files that a line lists
_COMMIT = re.compile(r"[0-9a-f]{40}")
_log: Report = logging.getLogger("moesaic").info
EVERY_S = 10.0


def fetch_config(hub_id: HubId) -> Path:
    """The folder of its config.json, which alone is fetched; a GGUF file has its own inside.
    Without a network, the copy in the cache is used."""
    if hub_id.file is not None:
        return fetch_model(hub_id)
    with reported(hub_id):
        here = snapshot(hub_id)
    if not is_offline() and (here is None or not _is_commit(hub_id)):
        try:
            check_reachable(hub_id)
        except CannotFetch as error:
            if here is None:
                raise
            _log(f"{error}. Using the copy in the cache: {here}")
            return here
    return _fetch_config(hub_id)


def _fetch_config(hub_id: HubId) -> Path:
    with reported(hub_id):
        from huggingface_hub import hf_hub_download

        return Path(hf_hub_download(hub_id.repo, CONFIG, revision=hub_id.revision)).parent


def fetch_model(
    hub_id: HubId, check: Callable[[Path], None] = lambda folder: None, report: Report = _log
) -> Path:
    """The path of the model once all its files are: a folder, or the GGUF file that was named.
    `check` gets the folder when only the config is in it, and may refuse the model; `report` gets a
    line before anything large is fetched."""
    if hub_id.file is not None and not reads_gguf():
        raise CannotFetch(
            f"{hub_id}: GGUF is not read here: give the id of the original model, which the page "
            f"of {hub_id.repo} names"
        )
    with reported(hub_id):
        here = _complete(hub_id)
    if here is not None and (is_offline() or _is_settled(hub_id, here)):
        return here
    if is_offline():
        raise CannotFetch(not_in_cache(hub_id))
    try:
        listing = read_listing(hub_id)
    except CannotFetch as error:
        if here is None:
            raise
        report(f"{error}. Using the copy in the cache: {here}")
        return here
    folder = None
    if hub_id.file is None:
        folder = _fetch_config(hub_id)
        check(folder)
    if listing.missing_bytes:
        report(f"fetching {listing}; {check_disk(listing)}")
        folder = _download(hub_id, listing, list(listing.sizes), report)
    elif folder is None:
        folder = snapshot(hub_id._replace(revision=listing.commit))
    assert folder is not None, "everything is in the cache"
    others = missing_files(folder, hub_id.file)
    if others:  # what only the index names
        report(f"fetching {', '.join(others[:_NAMED])} of {hub_id}, too")
        folder = _download(hub_id, listing, others, report)
    return folder if hub_id.file is None else folder / hub_id.file


def reads_gguf() -> bool:
    return find_spec(_GGUF_READER) is not None


def _download(hub_id: HubId, listing: Listing, files: list[str], report: Report) -> Path:
    with reported(hub_id), watched(hub_id, listing.bytes, report):
        from huggingface_hub import snapshot_download

        names = [escape(name) for name in files]
        return Path(snapshot_download(hub_id.repo, revision=hub_id.revision, allow_patterns=names))


def _is_settled(hub_id: HubId, here: Path) -> bool:
    """Whether the hub need not be asked: a commit does not change. Other programs fetch weights
    without the tokenizer."""
    whole = hub_id.file is not None or (here / _TOKENIZER).is_file()
    return whole and _is_commit(hub_id)


def _is_commit(hub_id: HubId) -> bool:
    return _COMMIT.fullmatch(hub_id.revision or "") is not None


def _complete(hub_id: HubId) -> Path | None:
    """The complete copy in the cache, as far as that can be known without the network."""
    folder = snapshot(hub_id)
    if folder is None or missing_files(folder, hub_id.file):
        return None
    return folder if hub_id.file is None else folder / hub_id.file


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
