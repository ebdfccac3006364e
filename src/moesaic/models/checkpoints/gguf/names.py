"""Which tensor of a GGUF file has what the decoder asks for by its published name."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import NamedTuple

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
    """Also of tensors that are not there: the name they would have, for messages."""
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
