"""Which program has written a file of routing, by its content, and its tokens."""

from __future__ import annotations

import re
import zipfile
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from moesaic.core.errors import BadTrace, UnknownName
from moesaic.workloads.domains import domains_of
from moesaic.workloads.importing.csv_routing import from_csv
from moesaic.workloads.importing.document import Imported, ImportedDocument
from moesaic.workloads.importing.llama_cpp import from_moe_trace
from moesaic.workloads.importing.vllm import GENERATED, from_vllm_arrays, from_vllm_responses
from moesaic.workloads.npz_trace import open_npz
from moesaic.workloads.source import ZIP_MAGIC

NPZ, VLLM, CSV, LLAMA_CPP = "npz", "vllm", "csv", "llama.cpp"
FORMATS = (NPZ, VLLM, CSV, LLAMA_CPP)
_TWO_NUMBERS = re.compile(rb"\s*\d+\s*,\s*\d+\s*(\n|\r|$)")


def read_routing(path: Path, form: str | None = None, top_k: int | None = None) -> Imported:
    """`form` is one of FORMATS, or None: by content. `top_k` is needed by those that do not say."""
    if form is not None and form not in FORMATS:
        raise UnknownName("format", form, FORMATS)
    with path.open("rb") as stream:
        start = stream.read(4096).removeprefix(BOM_UTF8)  # spreadsheets write it
    is_archive = start.startswith(ZIP_MAGIC)
    form = form or _recognized(path, start)
    if is_archive and form in (CSV, LLAMA_CPP):
        raise BadTrace(path, "format", f"is an archive of arrays, not the text that {form} is")
    if form == NPZ:
        return _from_npz(path)
    if form == VLLM:
        return from_vllm_arrays(path) if is_archive else from_vllm_responses(path)
    return from_csv(path) if form == CSV else from_moe_trace(path, top_k)


def _recognized(path: Path, start: bytes) -> str:
    if start.startswith(ZIP_MAGIC):
        return VLLM if f"{GENERATED}.npy" in _members(path) else NPZ
    if start.lstrip()[:1] in (b"{", b"["):
        return VLLM
    if _TWO_NUMBERS.match(start):
        return LLAMA_CPP
    if b"," in start and start.isascii() and b"\0" not in start:
        return CSV
    raise BadTrace(
        path,
        "format",
        "is neither an .npz of arrays, nor vLLM's responses as JSON, nor CSV: what is read stands "
        "in docs/import-traces.md",
    )


def _members(path: Path) -> Sequence[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise BadTrace(path, "archive", f"cannot be read ({error})") from error


def _from_npz(path: Path) -> Imported:
    trace = open_npz(path)
    arrays, header = trace.arrays, trace.header
    domains = domains_of(header)
    starts = np.flatnonzero(np.r_[True, np.diff(arrays.documents) > 0])
    parts = [slice(*ends) for ends in zip(starts, (*starts[1:], len(arrays.experts)), strict=True)]
    documents = [
        ImportedDocument(
            arrays.experts[part],
            arrays.positions[part],
            None if arrays.weights is None else arrays.weights[part],
            arrays.phases[part] if trace.said.phases else None,
            domains[number] if domains else None,
        )
        for number, part in enumerate(parts)
    ]
    said = trace.said
    return Imported(documents, [], said.num_experts, said.model, said.origin, said.source)
