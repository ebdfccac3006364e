"""Do the CUDA kernels around a latent layer's attention turn, normalise, store and multiply what
PyTorch's operations say? Their source is compiled for the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from cuda_on_host import COMPILER, compiled, launch
from moesaic.model_info.kv_blocks import KV_BLOCK
from moesaic.model_info.network import Rope
from moesaic.models.attentions.rope import frequencies, rotate, rotation
from moesaic.models.norm import RmsNorm

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
HEADS, PLAIN, TURNS, RANK, LENGTH, SLOTS, VALUES = 3, 28, 16, 128, 11, 2, 32
KERNELS = ("turn_store", "absorb_one", "expand_one")
EPS = 1e-3  # no other constant is like it
TABLE = torch.tensor([[1], [0]], dtype=torch.int32)  # a sequence has one block
UNUSED = 7.0


@pytest.fixture(scope="module", params=[True, False], ids=["interleaved", "halves"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    defines: dict[str, int | float] = {
        "HEADS": HEADS, "HEAD_WIDTH": PLAIN + TURNS, "ROPE_DIM": TURNS, "RANK": RANK,
        "LATENT_EPS": EPS, "INTERLEAVED": int(request.param), "VALUE_WIDTH": VALUES,
    }  # fmt: skip
    return Made(request.param, defines, tmp_path_factory.mktemp("latent"))


class Made:
    def __init__(self, interleaved: bool, defines: dict[str, int | float], folder: Path) -> None:
        self.rope = Rope("default", theta=100.0, dim=TURNS, interleaved=interleaved)
        self.library: ctypes.CDLL = compiled("latent", defines, KERNELS, folder)
        turns = rotation(self.rope, frequencies(self.rope), torch.arange(LENGTH))
        self.turns = torch.cat((turns.cos, turns.sin), dim=1).contiguous()


def test_queries_and_keys_are_turned_and_latents_normed(made: Made) -> None:
    """Three tokens in two slots, of which the last is not active."""
    torch.manual_seed(0)
    tokens, active = 3, 2
    query = torch.randn(tokens, HEADS, PLAIN + TURNS).bfloat16()
    compressed = torch.randn(tokens, RANK + TURNS).bfloat16()
    norm = RmsNorm((1 + 0.2 * torch.randn(RANK)).bfloat16(), EPS)
    slots, positions = torch.tensor([1, 0, 0]), torch.tensor([10, 3, 5])
    turned = torch.full((tokens, HEADS, TURNS), UNUSED).bfloat16()
    latents = torch.full((SLOTS, KV_BLOCK, RANK), UNUSED).bfloat16()
    keys = torch.full((SLOTS, KV_BLOCK, TURNS), UNUSED).bfloat16()
    launch(
        made.library, "turn_store", (HEADS + 1, tokens), 128, query, compressed, norm.weight,
        made.turns, slots, positions, torch.tensor([active]), turned, latents, keys, TABLE, 1,
    )  # fmt: skip
    turn = rotation(made.rope, frequencies(made.rope), positions)
    wanted = rotate(made.rope, query[..., PLAIN:], turn)
    assert torch.allclose(turned.float(), wanted.float(), rtol=2**-7, atol=1e-6)
    key = rotate(made.rope, compressed[:, None, RANK:], turn)[:, 0]
    latent = norm(compressed[:, :RANK])
    untouched = torch.ones(SLOTS, KV_BLOCK, dtype=torch.bool)
    for row in range(active):
        at = TABLE[slots[row], 0], positions[row]
        untouched[at] = False
        assert torch.allclose(latents[at].float(), latent[row].float(), rtol=2**-7, atol=1e-6)
        assert torch.allclose(keys[at].float(), key[row].float(), rtol=2**-7, atol=1e-6)
    assert (latents[untouched] == UNUSED).all(), "only these positions are written"
    assert (keys[untouched] == UNUSED).all()


@pytest.mark.parametrize("active", [0, 1])
def test_one_tokens_queries_go_to_the_latents_space(made: Made, active: int) -> None:
    torch.manual_seed(1)
    query = torch.randn(1, HEADS, PLAIN + TURNS).bfloat16()
    compressed = torch.randn(1, RANK + TURNS).bfloat16()
    norm = RmsNorm((1 + 0.2 * torch.randn(RANK)).bfloat16(), EPS)
    expand = torch.randn(HEADS, PLAIN + VALUES, RANK).bfloat16()
    slots, positions = torch.tensor([1]), torch.tensor([10])
    queries = torch.full((HEADS, RANK), UNUSED).bfloat16()
    turned, told = (torch.full((HEADS, TURNS), UNUSED).bfloat16() for _ in range(2))
    caches = [
        [torch.full((SLOTS, KV_BLOCK, width), UNUSED).bfloat16() for width in (RANK, TURNS)]
        for _ in range(2)
    ]
    before = query, compressed, norm.weight, made.turns, slots, positions, torch.tensor([active])
    launch(
        made.library, "absorb_one", (HEADS * RANK // 64 + 1, 1), 256, *before, expand, queries,
        turned, *caches[0], TABLE, 1,
    )  # fmt: skip
    launch(
        made.library, "turn_store", (HEADS + 1, 1), 128, *before, told, *caches[1], TABLE, 1
    )  # fmt: skip
    assert torch.equal(turned, told)
    assert all(torch.equal(one, other) for one, other in zip(*caches, strict=True))
    assert bool((caches[0][0] != UNUSED).any()) == bool(active)
    plain = query[0, :, :PLAIN].double()
    wanted = torch.einsum("hd,hdr->hr", plain, expand[:, :PLAIN].double())
    assert torch.allclose(queries.double(), wanted, rtol=2**-8, atol=1e-2)


@pytest.mark.parametrize("position", [0, 7, 8, 10, 200, 255])
def test_pieces_are_joined_and_taken_to_values(made: Made, position: int) -> None:
    """Pieces of four positions, up to 64; what lies behind the last one may be anything."""
    torch.manual_seed(2)
    piece, pieces = 4, 64
    used = position // piece + 1
    mixed = torch.randn(HEADS, pieces, RANK)
    tops, sums = 3 * torch.randn(HEADS, pieces), 1 + torch.rand(HEADS, pieces)
    mixed[:, used:] = tops[:, used:] = sums[:, used:] = torch.nan
    expand = torch.randn(HEADS, PLAIN + VALUES, RANK).bfloat16()
    values = torch.full((HEADS * VALUES,), UNUSED).bfloat16()
    launch(
        made.library, "expand_one", (HEADS * VALUES // 16, 1), 256, mixed, tops, sums,
        torch.tensor([position]), pieces, piece, expand, values,
    )  # fmt: skip
    weight = (tops[:, :used] - tops[:, :used].amax(1, keepdim=True)).double().exp()
    total = (weight * sums[:, :used]).sum(1)
    joined = (weight[:, :, None] * mixed[:, :used]).sum(1) / total[:, None]
    wanted = torch.einsum("hr,hdr->hd", joined.bfloat16().double(), expand[:, PLAIN:].double())
    assert torch.allclose(values.view(HEADS, VALUES).double(), wanted, rtol=2**-8, atol=5e-2)
