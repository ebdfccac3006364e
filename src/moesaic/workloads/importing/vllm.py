"""Routing that vLLM returns with `enable_return_routed_experts`.

Its responses have `routed_experts` [generated tokens, layers, k] per completion and
`prompt_routed_experts` [prompt tokens, layers, k] per request, as nested lists. Tokens whose prompt
prefix was cached have -1 everywhere: their routing is unknown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moesaic.core.errors import BadTrace
from moesaic.core.parsing import parse_json
from moesaic.workloads.block import DECODE, PREFILL
from moesaic.workloads.importing.document import Imported, ImportedDocument
from moesaic.workloads.npz_arrays import read_arrays

GENERATED, PROMPT = "routed_experts", "prompt_routed_experts"


def from_vllm_arrays(path: Path) -> Imported:
    """One request: an .npz with `routed_experts` and, where it is known, `prompt_routed_experts`.
    Without the latter, prompt and answer may stand in one array, so that phases are unknown."""
    found = read_arrays(path, (GENERATED, PROMPT))
    if GENERATED not in found:
        raise BadTrace(path, GENERATED, "is missing")
    return _kept(
        path, [_document(path, found.get(PROMPT), found[GENERATED], split=PROMPT in found)]
    )


def from_vllm_responses(path: Path) -> Imported:
    """Responses of the server's completions: one JSON object, a list, or one object per line."""
    documents = []
    for where, response in _responses(path):
        prompt = _array(path, where, PROMPT, response.get(PROMPT))
        choices = response.get("choices")
        if not isinstance(choices, list) or not choices:
            raise BadTrace(path, where, "has no choices: it must be a response of vLLM's server")
        for number, choice in enumerate(choices):
            found = choice.get(GENERATED) if isinstance(choice, Mapping) else None
            if found is None:
                raise BadTrace(
                    path, f"{where}, choice {number}",
                    f"has no {GENERATED}: start the server with --enable-return-routed-experts",
                )  # fmt: skip
            generated = _array(path, where, GENERATED, found)
            assert generated is not None, "it is not null"
            shared = prompt if number == 0 else None  # the choices of a request share its prompt
            begin = 0 if prompt is None else len(prompt)
            documents.append(_document(path, shared, generated, True, begin))
    return _kept(path, documents)


def _responses(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    lines = text.splitlines()
    if text.lstrip().startswith("[") or len(lines) < 2 or not _is_object(lines[0]):
        whole = parse_json(text, BadTrace, path, "response", finite=True)
        found = [
            (f"response {number}", each)
            for number, each in enumerate(whole if isinstance(whole, list) else [whole])
        ]
    else:
        found = [
            (f"line {number}", parse_json(line, BadTrace, path, f"line {number}", finite=True))
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]
    for where, response in found:
        if not isinstance(response, Mapping):
            raise BadTrace(path, where, "must be a JSON object: a response of vLLM's server")
        yield where, response


def _is_object(line: str) -> bool:
    """Whether a line holds a whole object: one per line."""
    return line.strip().startswith("{") and line.strip().endswith("}")


def _array(path: Path, where: str, name: str, value: object) -> NDArray[Any] | None:
    if value is None:
        return None
    try:
        found = np.array(value)
    except ValueError:
        found = np.empty(0)
    if found.ndim != 3 or found.dtype.kind not in "iu":
        raise BadTrace(
            path, f"{where}: {name}",
            "must be whole numbers [tokens][layers][k], as many layers and experts for every token",
        )  # fmt: skip
    return found


def _document(
    path: Path, prompt: NDArray[Any] | None, generated: NDArray[Any], split: bool, begin: int = 0
) -> ImportedDocument:
    """`begin` is the position of the first generated token where the prompt is left out."""
    if prompt is None:
        phases = np.full(len(generated), DECODE) if split else None
        return ImportedDocument(generated, begin + np.arange(len(generated)), phases=phases)
    if prompt.ndim != 3 or generated.ndim != 3 or prompt.shape[1:] != generated.shape[1:]:
        raise BadTrace(
            path, PROMPT, f"{list(prompt.shape)} must have the layers and experts of {GENERATED}, "
            f"{list(generated.shape)}",
        )  # fmt: skip
    experts = np.concatenate([prompt, generated])
    phases = np.repeat([PREFILL, DECODE], [len(prompt), len(generated)])
    return ImportedDocument(experts, np.arange(len(experts)), phases=phases)


def _kept(path: Path, documents: list[ImportedDocument]) -> Imported:
    """The documents without the tokens whose routing is unknown."""
    kept, unknown = [], 0
    for each in documents:
        known = ~(each.experts == -1).all(axis=(1, 2)) if each.experts.ndim == 3 else slice(None)
        phases = None if each.phases is None else each.phases[known]
        found = ImportedDocument(each.experts[known], each.positions[known], phases=phases)
        unknown += len(each.experts) - len(found.experts)
        if len(found.experts):
            kept.append(found)
    if not kept:
        raise BadTrace(path, GENERATED, "has no token whose routing is known")
    notes = [f"{unknown} tokens of cached prefixes have no routing (-1) and are left out"]
    return Imported(kept, notes if unknown else [])
