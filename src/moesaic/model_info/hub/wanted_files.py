"""Which files of a repository are needed to run its model: config, tokenizer, and the weights once,
as safetensors. Not what repositories have besides: pickled copies, other frameworks' files, the
publisher's own layout in `original/` or `consolidated*`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from moesaic.core.errors import CannotFetch
from moesaic.model_info.hub.hub_id import HubId
from moesaic.model_info.model_files import SMALL_FILES

_INDEX, _SINGLE = "model.safetensors.index.json", "model.safetensors"
_NUMBERED = re.compile(r".*-\d+-of-\d+\.safetensors")
_PART = re.compile(r"(?P<name>.*)-\d{1,9}-of-(?P<parts>\d{1,9})\.gguf")
_PICKLED = (".bin", ".pt", ".pth")
_MOST_PARTS = 9999
_NAMED = 3  # files that a message lists


def wanted_files(hub_id: HubId, files: Mapping[str, int]) -> list[str]:
    """The wanted ones of `files` (path: bytes); raises CannotFetch where no weights can be read."""
    if hub_id.file is not None:
        return _gguf_parts(hub_id, files)
    weights = _weights(files)
    if not weights:
        raise CannotFetch(f"{hub_id.repo} has no safetensors files{_instead(hub_id, files)}")
    return [*(name for name in SMALL_FILES if name in files), *weights]


def _weights(files: Iterable[str]) -> list[str]:
    names = sorted(name for name in files if "/" not in name)
    shards = [n for n in names if n.endswith(".safetensors") and not n.startswith("consolidated")]
    if _INDEX in names:
        return [_INDEX, *([n for n in shards if _NUMBERED.fullmatch(n)] or shards)]
    return [_SINGLE] if _SINGLE in names else []


def _gguf_parts(hub_id: HubId, files: Mapping[str, int]) -> list[str]:
    """The file, or all parts of a split one."""
    file = hub_id.file
    assert file is not None, "asked for a file"
    if file not in files:
        raise CannotFetch(f"{hub_id.repo} has no file {file}{_instead(hub_id, files)}")
    missing = [name for name in all_parts(file) if name not in files]
    if missing:
        raise CannotFetch(f"{hub_id.repo} has no file {missing[0]}, a part of {file}")
    return all_parts(file)


def all_parts(gguf: str) -> list[str]:
    """A GGUF file, or, where the name is that of one part, all of them."""
    part = _PART.fullmatch(gguf)
    if part is None or not 0 < int(part["parts"]) <= _MOST_PARTS:
        return [gguf]
    name, parts = part["name"], part["parts"]
    return [f"{name}-{n:0{len(parts)}}-of-{parts}.gguf" for n in range(1, int(parts) + 1)]


def _instead(hub_id: HubId, files: Mapping[str, int]) -> str:
    ggufs = sorted(name for name in files if name.endswith(".gguf"))
    if ggufs:
        others = f" and {len(ggufs) - _NAMED} more" if len(ggufs) > _NAMED else ""
        named = ", ".join(ggufs[:_NAMED]) + others
        return f"; it has {named}: name one, as in {hub_id.repo}:{ggufs[0]}"
    if any(name.endswith(_PICKLED) for name in files):
        return (
            "; PyTorch's pickled weights are not read: convert it with transformers, "
            f"AutoModelForCausalLM.from_pretrained({hub_id.repo!r}).save_pretrained(FOLDER), and "
            "give the folder"
        )
    return ": is it a language model in Hugging Face layout?"
