"""How a model on the hub is named: `owner/name`, with `@revision`, and with `:file.gguf` for one
file of a repository that has several models. `hf://` before it says that no path is meant."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_PREFIX = "hf://"
_WORD = r"[A-Za-z0-9][\w.-]*"
_HUB_ID = re.compile(
    rf"(?P<repo>{_WORD}/{_WORD})"
    r"(?:@(?P<revision>[\w][\w./+-]*))?"
    r"(?::(?P<file>[\w][\w./+-]*\.gguf))?"
)
_FILES = (".json", ".toml", ".gguf", ".safetensors", ".bin", ".pt", ".pth")  # no ids end so


class HubId(NamedTuple):
    repo: str  # owner/name
    revision: str | None = None  # branch, tag or commit; None: the main branch
    file: str | None = None  # a GGUF file in it

    def __str__(self) -> str:
        revision = "" if self.revision is None else f"@{self.revision}"
        return self.repo + revision + ("" if self.file is None else f":{self.file}")

    @property
    def name(self) -> str:
        return self.repo.rpartition("/")[2]


def parse_hub_id(name: object) -> HubId | None:
    """None for what is no id: a path that exists, or whose folder does, and all other names."""
    if not isinstance(name, str):
        return None
    found = _HUB_ID.fullmatch(name.removeprefix(_PREFIX))
    if found is None:
        return None
    hub_id = HubId(found["repo"], found["revision"], found["file"])
    if name.startswith(_PREFIX):
        return hub_id
    path = Path(hub_id.repo)
    is_path = Path(name).exists() or path.exists() or path.parent.is_dir()
    return None if is_path or path.suffix.lower() in _FILES else hub_id


def with_revision(name: str, revision: str) -> str | None:
    """The id with the revision that was given apart from it; None where it is no id, or that no
    name of a revision."""
    hub_id = parse_hub_id(name)
    found = None if hub_id is None else f"{_PREFIX}{hub_id._replace(revision=revision)}"
    return None if parse_hub_id(found) is None else found
