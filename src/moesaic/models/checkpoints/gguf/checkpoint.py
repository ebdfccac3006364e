"""A GGUF file's tensors under the names and in the shapes of the published checkpoint.

Some things differ beyond names. Experts are stacked; those of gpt-oss are in another order
(`interleaved`). llama.cpp turns neighbouring values of a head where it runs Mixtral and Granite, so
the rows of queries and keys are interleaved in its files; here they are put back. Newer files of
DeepSeek have the expansion of keys and of values apart, the first transposed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.model_info.gguf.files import read_gguf
from moesaic.model_info.gguf.header import TensorInfo, is_expert
from moesaic.models.checkpoints.gguf.dequantize import FLOATS, dequantize, has_nan_scale
from moesaic.models.checkpoints.read_bytes import read_bytes
from moesaic.models.configs.architecture import Architecture

_INTERLEAVED = (
    "mixtral",
    "granitemoe",
)  # families whose queries and keys are stored for neighbouring pairs


class GgufCheckpoint:
    described_by = "its metadata"

    def __init__(self, path: Path, architecture: Architecture) -> None:
        self._path = path
        self._tensors = read_gguf(path).tensors
        self._spec = architecture.spec
        self._expected: set[str] = set()

    def __contains__(self, name: str) -> bool:
        found = locate(name, self._tensors)
        return found.name in self._tensors or self._is_apart(name)

    def expect(self, name: str, shape: Sequence[int]) -> None:
        stacks = self._interleaved(name, shape)
        if stacks is not None:
            for piece in stacks:
                self._check(Location(piece.name), piece.shape)
        elif self._is_apart(name):
            for location, expected in self._apart(name):
                self._check(location, expected)
        else:
            self._check(locate(name, self._tensors), shape)

    def read(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        if self._is_apart(name):
            return self._joined(name).reshape(tuple(shape))
        found = self._read(locate(name, self._tensors), shape)
        heads = self._interleaved_heads(name)
        return found if heads is None else _deinterleaved(found, heads)

    def read_part(self, name: str, shape: Sequence[int], index: int) -> torch.Tensor:
        stacks = self._interleaved(name, shape)
        if stacks is not None:
            return joined([self._read(Location(p.name, index), p.shape[1:]) for p in stacks])
        location = locate(name, self._tensors)
        self._check(location, shape)
        return self._read(Location(location.name, index), shape[1:])

    def unread(self) -> list[str]:
        return [name for name in self._tensors if name not in self._expected]

    def block_formats(self) -> tuple[str, ...]:
        experts = (info.type.name for name, info in self._tensors.items() if is_expert(name))
        return tuple(sorted(set(experts) - FLOATS.keys()))

    def file_of(self, name: str) -> Path:
        info = self._tensors.get(name) or self._tensors[locate(name, self._tensors).name]
        return info.path

    def _check(self, location: Location, shape: Sequence[int]) -> TensorInfo:
        """Leading dimensions of 1 say nothing: GGUF drops some of them."""
        self._expected.add(location.name)
        info = self._tensors.get(location.name)
        if info is None:
            raise BadCheckpoint(self._path, location.name, "the tensor is missing")
        found = info.shape if location.part is None else info.shape[1:]
        if _significant(found) != _significant(shape):
            what = f"expected shape {list(shape)}, found {list(found)}"
            raise BadCheckpoint(info.path, location.name, what)
        if location.part is not None and info.shape[0] != self._spec.num_experts:
            what = f"expected {self._spec.num_experts} experts, found {info.shape[0]}"
            raise BadCheckpoint(info.path, location.name, what)
        return info

    def _read(self, location: Location, shape: Sequence[int]) -> torch.Tensor:
        info = self._check(location, shape)
        size, start = info.size, info.start
        if location.part is not None:
            size //= info.shape[0]
            start += location.part * size
        raw = read_bytes(info.path, start, size, location.name)
        if has_nan_scale(raw, info.type):
            what = "a scale is 0xFF, which means that its block is no number"
            raise BadCheckpoint(info.path, location.name, what)
        return dequantize(raw, info.type).view(tuple(shape))

    def _interleaved(self, name: str, shape: Sequence[int]) -> list[StackPart] | None:
        return pieces(name, shape) if self._spec.family in FAMILIES else None

    def _interleaved_heads(self, name: str) -> int | None:
        if self._spec.family not in _INTERLEAVED:
            return None
        if ".self_attn.q_proj." in name:
            return self._spec.num_heads
        return self._spec.num_kv_heads if ".self_attn.k_proj." in name else None

    def _is_apart(self, name: str) -> bool:
        """Whether this is the expansion of keys and values, and stored as two tensors."""
        found = locate(name, self._tensors).name
        return (
            found.endswith(".attn_kv_b.weight")
            and found not in self._tensors
            and found.replace("attn_kv_b", "attn_k_b") in self._tensors
        )

    def _apart(self, name: str) -> list[tuple[Location, tuple[int, ...]]]:
        shape = self._spec.latent_attention
        assert shape is not None, "only latent attention has an expansion"
        heads, rank = self._spec.num_heads, shape.kv_lora_rank
        found = locate(name, self._tensors).name
        return [
            (
                Location(found.replace("attn_kv_b", "attn_k_b")),
                (heads, rank, shape.qk_nope_head_dim),
            ),
            (Location(found.replace("attn_kv_b", "attn_v_b")), (heads, shape.v_head_dim, rank)),
        ]

    def _joined(self, name: str) -> torch.Tensor:
        keys, values = (self._read(*piece).float() for piece in self._apart(name))
        return torch.cat((keys.transpose(1, 2), values), dim=1)


def _significant(shape: Sequence[int]) -> tuple[int, ...]:
    leading = next((place for place, size in enumerate(shape) if size != 1), len(shape))
    return tuple(shape[leading:])


def _deinterleaved(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Of every head, the first of all pairs, then the second: pairs are half a head apart again."""
    width = rows.shape[0] // heads
    assert math.prod(rows.shape[:1]) == heads * width, "heads are equally wide"
    apart = rows.unflatten(0, (heads, width // 2, 2))
    return apart.transpose(1, 2).flatten(0, 2).contiguous()


# gpt-oss: its published stacks are transposed and have gate and up in turn, GGUF has three stacks
# of plain matrices, and biases beside them.

FAMILIES = ("gpt_oss",)
_STACK = re.compile(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up_proj|down_proj)(_bias)?")


class StackPart(NamedTuple):
    name: str  # in the GGUF file
    shape: tuple[int, ...]


def pieces(name: str, shape: Sequence[int]) -> list[StackPart] | None:
    """The stacks that a published one consists of: gate and up, or down. None: it is no stack."""
    stack = _STACK.fullmatch(name)
    if stack is None:
        return None
    prefix, both = f"blk.{stack[1]}.ffn_", stack[2] == "gate_up_proj"
    experts, *sizes = shape
    if both:
        sizes[-1] //= 2
    found = (experts, *reversed(sizes))
    end = "_exps.bias" if stack[3] else "_exps.weight"
    names = ("gate", "up") if both else ("down",)
    return [StackPart(f"{prefix}{each}{end}", found) for each in names]


def joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """One expert's rows of gate and up in turn, then transposed; a bias stays a row."""
    rows = torch.stack(tuple(parts), dim=1).flatten(0, 1) if len(parts) > 1 else parts[0]
    return rows.T if rows.dim() == 2 else rows


# Which tensor of a GGUF file has what the decoder asks for by its published name.

_GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = re.compile(r"model\.layers\.(?P<layer>\d+)\.(?P<rest>.+)")
_EXPERT = re.compile(r"experts\.(?P<expert>\d+)\.(?P<matrix>\w+)\.weight")
# Inside a layer, `.weight` or `.bias` left out.
_IN_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "self_attn.kv_b_proj": "attn_kv_b",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Inside a routed block, whatever the file calls the block and its shared experts.
_IN_BLOCK = {
    "gate.weight": "ffn_gate_inp.weight",
    "router.weight": "ffn_gate_inp.weight",
    "router.bias": "ffn_gate_inp.bias",
    "sinks": "attn_sinks.weight",
    "gate.e_score_correction_bias": "exp_probs_b.bias",
    "shared.gate_proj.weight": "ffn_gate_shexp.weight",
    "shared.up_proj.weight": "ffn_up_shexp.weight",
    "shared.down_proj.weight": "ffn_down_shexp.weight",
    "shared_gate.weight": "ffn_gate_inp_shexp.weight",
    "experts.gate_up_proj": "ffn_gate_up_exps.weight",
    "experts.down_proj": "ffn_down_exps.weight",
}
_SHARED = re.compile(r"shared_experts?(?=[._])")
_MATRICES = {"gate_proj": "gate", "up_proj": "up", "down_proj": "down"}
_MATRICES |= {"w1": "gate", "w3": "up", "w2": "down"}  # Mixtral


class Location(NamedTuple):
    name: str  # in the GGUF file
    part: int | None = None  # of a stack of experts


def locate(name: str, present: Container[str]) -> Location:
    """The location of a tensor; for one that is absent, the name it would have, for messages."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return Location(_GLOBAL.get(name, name))
    prefix, rest = f"blk.{layer['layer']}", layer["rest"]
    stem, _, end = rest.rpartition(".")
    if stem in _IN_LAYER:
        return Location(_in_layer(prefix, stem, end, present))
    _, _, inside = rest.partition(".")
    expert = _EXPERT.fullmatch(inside)
    if expert is not None and expert["matrix"] in _MATRICES:
        matrix = _MATRICES[expert["matrix"]]
        return _expert(prefix, matrix, int(expert["expert"]), present)
    known = _IN_BLOCK.get(_SHARED.sub("shared", inside))
    return Location(f"{prefix}.{known}" if known else name)


def _in_layer(prefix: str, stem: str, end: str, present: Container[str]) -> str:
    name = f"{prefix}.{_IN_LAYER[stem]}.{end}"
    if stem == "post_attention_layernorm" and name not in present:
        return f"{prefix}.post_attention_norm.{end}"  # GLM
    return name


def _expert(prefix: str, matrix: str, expert: int, present: Container[str]) -> Location:
    """Stacked; the first files of Mixtral have them one by one."""
    alone = f"{prefix}.ffn_{matrix}.{expert}.weight"
    if alone in present:
        return Location(alone)
    return Location(f"{prefix}.ffn_{matrix}_exps.weight", expert)
