"""Do all machines of a cluster run the same Moesaic as this one? Another version would compute
other rows."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import moesaic
from moesaic.cluster.ray_cluster import Node
from moesaic.core.errors import ImpossibleSetting

_SOURCES = frozenset({".py", ".toml", ".json"})
_ANSWER_S = 120  # a machine's first process imports the package
_SHOWN = 12  # characters of a hash


class Version(NamedTuple):
    package: str
    sources: str  # a hash of the installed package
    python: str
    files: tuple[str, ...] = ()  # of the study: a hash of each, or why there is none

    def __str__(self) -> str:
        return f"moesaic {self.package} (sources {self.sources[:_SHOWN]}) on Python {self.python}"


def version(files: Sequence[str] = ()) -> Version:
    """`files`: that the study reads."""
    hashes = tuple(map(_of_file, files))
    return Version(moesaic.__version__, _sources(), platform.python_version(), hashes)


def check_same_version(nodes: Sequence[Node], files: Sequence[str] = ()) -> None:
    """Refuse a cluster in which a machine has another version, or none, or other files."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    asked = {
        node: ray.remote(version)
        .options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node.id, soft=False),
        )
        .remote(list(files))
        for node in nodes
    }
    found: dict[str, Version | str] = {}
    for node, answer in asked.items():
        try:
            found[node.address] = ray.get(answer, timeout=_ANSWER_S)
        except Exception as error:
            found[node.address] = _last_line(error)
    refuse_others(found, version(files), files)


def refuse_others(found: dict[str, Version | str], own: Version, files: Sequence[str] = ()) -> None:
    """`found`: by machine, its version, or why it has told none."""
    for machine, theirs in found.items():
        if isinstance(theirs, str):
            raise ImpossibleSetting(
                f"the cluster's machine {machine} cannot run Moesaic ({theirs}): install the same "
                "version there, in the environment that Ray was started from"
            )
        for file, there, here in zip(files, theirs.files, own.files, strict=True):
            if there != here:
                raise ImpossibleSetting(
                    f"the file {file!r} is another one on the cluster's machine {machine}, or is "
                    "missing there: put it at the same path on all machines"
                )
        if theirs != own:
            raise ImpossibleSetting(
                f"the cluster's machine {machine} has {theirs}, and this one has {own}: rows of "
                "both could not be compared. Install the same on all"
            )


def _last_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _of_file(file: str) -> str:
    try:
        return sha256(Path(file).read_bytes()).hexdigest()
    except OSError as error:
        return error.strerror or str(error)


@cache
def _sources() -> str:
    folder, found = Path(moesaic.__file__).parent, sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in _SOURCES and path.is_file():
            found.update(f"{path.relative_to(folder)}\0".encode())
            found.update(sha256(path.read_bytes()).digest())
    return found.hexdigest()
