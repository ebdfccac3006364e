"""What a repository has, as the hub tells or as the cache remembers, and how much of it is here."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from moesaic.core.errors import CannotFetch
from moesaic.core.units import GB
from moesaic.model_info.hub.faults import endpoint, reported
from moesaic.model_info.hub.hub_id import HubId
from moesaic.model_info.hub.wanted_files import wanted_files

SPARE = 1 << 30  # bytes of the disk that stay free
_ANSWER_S = 10.0  # a hub that does not answer within it cannot be reached


@dataclass(frozen=True, slots=True)
class Listing:
    """The files that are needed, at one commit."""

    hub_id: HubId
    commit: str
    sizes: dict[str, int]  # bytes by path
    cached: frozenset[str]  # those that are here already

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())

    @property
    def missing_bytes(self) -> int:
        return sum(size for name, size in self.sizes.items() if name not in self.cached)

    def __str__(self) -> str:
        here = self.bytes - self.missing_bytes
        known = f", {here / GB:.2f} GB of it in the cache" if here else ""
        count = "1 file" if len(self.sizes) == 1 else f"{len(self.sizes)} files"
        return f"{self.hub_id} (commit {self.commit[:7]}): {count}, {self.bytes / GB:.2f} GB{known}"


def read_listing(hub_id: HubId) -> Listing:
    """Asks the hub; fetches nothing."""
    with reported(hub_id):
        from huggingface_hub import HfApi, try_to_load_from_cache

        info = HfApi().model_info(
            hub_id.repo, revision=hub_id.revision, timeout=_ANSWER_S, files_metadata=True
        )
        files = {each.rfilename: each.size or 0 for each in info.siblings or []}
        wanted = wanted_files(hub_id, files)
        commit = str(info.sha)
        cached = (
            name
            for name in wanted
            if isinstance(try_to_load_from_cache(hub_id.repo, name, revision=commit), str)
        )
        return Listing(hub_id, commit, {name: files[name] for name in wanted}, frozenset(cached))


def check_reachable(hub_id: HubId) -> None:
    """One request. A download makes six attempts, which takes half a minute without a network."""
    with reported(hub_id):
        from huggingface_hub import HfApi

        HfApi().model_info(hub_id.repo, revision=hub_id.revision, timeout=_ANSWER_S)


def cache_folder() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def free_bytes() -> int:
    """The free bytes of the disk that the cache is, or will be, on."""
    folder = cache_folder()
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def check_disk(listing: Listing) -> str:
    """Text on the disk space; raises CannotFetch where the model does not fit."""
    free, missing = free_bytes(), listing.missing_bytes
    if missing + SPARE > free:
        raise CannotFetch(
            f"{listing.hub_id} from {endpoint()} needs {missing / GB:.2f} GB on the disk of the "
            f"cache {cache_folder()}, which has {free / GB:.2f} GB free: make room, or set HF_HOME "
            "to a folder on another disk"
        )
    return f"{free / GB:.1f} GB are free in {cache_folder()}"
