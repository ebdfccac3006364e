"""How long latent attention of a prompt takes on a GPU: `python -m benchmarks.latent_prompts`.

One layer, a prompt's piece behind a cached context: the kernel of captured steps in each way to cut
it, with the products around it; and, as layer by layer, keys and values expanded from the latents
with PyTorch's attention. Microseconds in a CUDA graph, and how much the absorbed form reaches of
the operations that it counts. Needs CUDA."""

from __future__ import annotations

import argparse
import json

import torch
from triton.runtime.errors import OutOfResources

from benchmarks.gpu_experts import graph_us
from moesaic.kernels.gpu.latent_prompt_attention import BLOCKINGS, Blocking, LatentPromptAttention
from moesaic.kernels.gpu.prompt_attention import tiles_of
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.models.attentions.attention import attend

RANK, TURNS, PLAIN, VALUE = 512, 64, 128, 128  # DeepSeek's
OTHERS = (Blocking(64, 32, 8, 3), Blocking(64, 16, 8, 3))


class Piece:
    def __init__(self, heads: int, tokens: int, context: int) -> None:
        def rows(*shape: int) -> torch.Tensor:
            return torch.randn(shape, device="cuda").to(torch.bfloat16)

        self.heads, self.tokens, self.length = heads, tokens, context + tokens
        self.plain, self.turned = rows(tokens, heads, PLAIN), rows(tokens, heads, TURNS)
        blocks = blocks_of(self.length)
        self.latents = rows(blocks, KV_BLOCK, RANK)
        self.keys = rows(blocks, KV_BLOCK, TURNS)
        self.table = torch.arange(blocks, dtype=torch.int32, device="cuda")[None]
        self.expand = rows(heads, PLAIN + VALUE, RANK) * RANK**-0.5
        self.tiles = torch.tensor(tiles_of([(0, context, tokens)]), device="cuda")
        pairs = heads * (tokens * context + tokens * (tokens + 1) // 2)
        self.operations = 2 * pairs * (2 * RANK + TURNS)

    def absorbed(self, kernel: LatentPromptAttention | None) -> None:
        """None: without attention."""
        key_part, value_part = self.expand.split((PLAIN, VALUE), dim=1)
        mixed = torch.bmm(self.plain.transpose(0, 1), key_part)
        if kernel is not None:
            mixed = kernel.launch(
                mixed, self.turned, self.latents, self.keys, self.table, self.tiles
            )
        torch.bmm(mixed, value_part.transpose(1, 2)).transpose(0, 1).flatten(1)

    def expanded(self) -> None:
        latents, keys = (each.flatten(0, 1)[: self.length] for each in (self.latents, self.keys))
        full = (latents @ self.expand.flatten(0, 1).T).unflatten(-1, (self.heads, -1))
        plain, values = full.split((PLAIN, VALUE), dim=-1)
        key = torch.cat((plain, keys[:, None].expand(-1, self.heads, -1)), -1)
        attend(torch.cat((self.plain, self.turned), -1), key, values, 0.07)

    def measure(self) -> None:
        case = {"heads": self.heads, "tokens": self.tokens, "length": self.length}
        around = graph_us(torch, lambda: self.absorbed(None))
        row = case | {"products_us": round(around), "expanded_us": self._expanded_us()}
        print(json.dumps(row), flush=True)
        for blocking in (*BLOCKINGS, *OTHERS):
            kernel = LatentPromptAttention(self.heads, RANK, TURNS, blocks_of(self.length), 0.07)
            kernel._blockings = [blocking]
            try:
                taken = graph_us(torch, lambda kernel=kernel: self.absorbed(kernel))
            except OutOfResources:
                continue
            rate = self.operations / (taken - around) / 1e6
            found = {"absorbed_us": round(taken), "tflop_s": round(rate)}
            print(json.dumps(case | {"blocking": tuple(blocking)} | found), flush=True)

    def _expanded_us(self) -> int | None:
        try:
            return round(graph_us(torch, self.expanded))
        except torch.cuda.OutOfMemoryError:
            return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--heads", default="16,128")
    parser.add_argument("--pieces", default="1024+0,2048+0,1024+8192", help="tokens+context, ...")
    arguments = parser.parse_args()
    for heads in map(int, arguments.heads.split(",")):
        for piece in arguments.pieces.split(","):
            tokens, context = map(int, piece.split("+"))
            Piece(heads, tokens, context).measure()


if __name__ == "__main__":
    main()
