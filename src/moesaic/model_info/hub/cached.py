"""What the cache of `huggingface_hub` holds, read without the network."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from moesaic.core.errors import BadCheckpoint
from moesaic.core.parsing import read_json
from moesaic.model_info.hub.hub_id import HubId
from moesaic.model_info.hub.wanted_files import all_parts
from moesaic.model_info.model_files import CONFIG

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"


@dataclass(frozen=True, slots=True)
class CachedModel:
    hub_id: HubId
    commit: str
    folder: Path
    bytes: int  # on disk, without what other revisions have too
    missing: tuple[str, ...]  # files with weights


def snapshot(hub_id: HubId) -> Path | None:
    """The folder of a revision, as the cache remembers it; files may be missing there."""
    from huggingface_hub import try_to_load_from_cache

    file = hub_id.file or CONFIG
    found = try_to_load_from_cache(hub_id.repo, file, revision=hub_id.revision)
    if not isinstance(found, str):
        return None
    return Path(found).parents[file.count("/")]


def missing_files(folder: Path, gguf: str | None = None) -> list[str]:
    """The weight files that a folder of the cache lacks."""
    if gguf is not None:
        names = all_parts(gguf)
    elif (folder / _INDEX).is_file():
        try:
            content = read_json(folder / _INDEX, BadCheckpoint)
        except BadCheckpoint:
            return [_INDEX]
        files = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(files, dict):
            return [_INDEX]
        names = sorted({name for name in files.values() if isinstance(name, str)})
    else:
        names = [_SINGLE]
    return [name for name in names if not (folder / name).is_file()]


def cached_models() -> list[CachedModel]:
    """Every revision of a model that has a config.json."""
    from huggingface_hub import constants, scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except CacheNotFound:
        return []
    found = []
    for repo in sorted(repos, key=lambda repo: str(repo.repo_id).lower()):
        if repo.repo_type != "model":
            continue
        for revision in sorted(repo.revisions, key=lambda each: str(each.commit_hash)):
            folder = Path(revision.snapshot_path)
            if (folder / CONFIG).is_file():
                refs = sorted(revision.refs)
                name = None if "main" in refs else refs[0] if refs else revision.commit_hash
                found.append(
                    CachedModel(
                        HubId(repo.repo_id, name),
                        revision.commit_hash,
                        folder,
                        revision.size_on_disk,
                        tuple(missing_files(folder)),
                    )
                )
    return found
