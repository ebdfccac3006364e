"""Compiles the decode kernels that are Triton's for Hopper, without a GPU, and says how much shared
memory each needs: what Triton's interpreter runs need not compile. A process of its own, since the
interpreter takes the kernels' place when they are imported."""

from __future__ import annotations

import json
import sys
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from moesaic.kernels.gpu.attention import _attend_piece
from moesaic.kernels.gpu.latent_attention import _attend_latents

HOPPER = GPUTarget("cuda", 90, 32)
BOTH = {"DOT": tl.bfloat16, "EARLY": True}
TYPES = {
    "*i64": ("slots", "positions", "active"),
    "*fp32": ("turns", "mixed", "tops", "sums"),
    "*i32": ("ended", "table"),
    "i32": ("of_slot", "pieces"),
    "fp32": ("scale",),
}
TYPE_OF = {name: kind for kind, names in TYPES.items() for name in names}


def compile_kernel(kernel: Any, constants: dict[str, Any], warps: int) -> int:
    """Bytes of shared memory. Arguments that are not named above are tensors in bf16."""
    names = kernel.arg_names
    kinds = {n: "constexpr" if n in constants else TYPE_OF.get(n, "*bf16") for n in names}
    tensors = [at for at, name in enumerate(names) if kinds[name].startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature=kinds,
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(at,): [["tt.divisibility", 16]] for at in tensors},
    )
    options = {"num_warps": warps, "launch_pdl": True}
    return int(triton.compile(source, target=HOPPER, options=options).metadata.shared)


def grouped(heads: int, kv_heads: int, width: int, turns: int, normed: bool) -> int:
    sizes = {
        "HEADS": heads, "KV_HEADS": kv_heads, "WIDTH": width, "GROUP": heads // kv_heads,
        "TURNS": turns, "EPS": 1e-6, "PIECE": 256, "BLOCK": 64,
    }  # fmt: skip
    norms: dict[str, Any] = {} if normed else {"query_norm": None, "key_norm": None}
    return compile_kernel(_attend_piece, sizes | norms | BOTH, warps=4)


def latent(heads: int, rank: int, turns: int, piece: int) -> int:
    sizes = {"HEADS": heads, "RANK": rank, "TURNS": turns, "GROUP": 16, "PIECE": piece, "BLOCK": 32}
    return compile_kernel(_attend_latents, sizes | BOTH, warps=8)


if __name__ == "__main__":
    found = {
        "qwen3-30b-a3b": grouped(32, 4, 128, 128, normed=True),
        "partly turned, no norms": grouped(16, 2, 64, 32, normed=False),
        "deepseek-v2-lite": latent(16, 512, 64, piece=64),
    }
    sys.stdout.write(json.dumps(found))
