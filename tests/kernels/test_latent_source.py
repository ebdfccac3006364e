"""Does the CUDA kernel between a latent layer's projections and its attention turn, normalise and
store what PyTorch's operations say? Its source is compiled for the CPU."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from cuda_on_host import COMPILER, compiled, launch
from moesaic.models.architecture import Rope
from moesaic.models.norm import RmsNorm
from moesaic.models.rope import frequencies, rotate, rotation

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
HEADS, PLAIN, TURNS, RANK, LENGTH, SLOTS = 3, 24, 16, 80, 11, 2
EPS = 1e-3  # no other constant is like it
UNUSED = 7.0


@pytest.fixture(scope="module", params=[True, False], ids=["interleaved", "halves"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    defines: dict[str, int | float] = {
        "HEADS": HEADS, "HEAD_WIDTH": PLAIN + TURNS, "ROPE_DIM": TURNS, "RANK": RANK,
        "LATENT_EPS": EPS, "INTERLEAVED": int(request.param),
    }  # fmt: skip
    return Made(request.param, defines, tmp_path_factory.mktemp("latent"))


class Made:
    def __init__(self, interleaved: bool, defines: dict[str, int | float], folder: Path) -> None:
        self.rope = Rope("default", theta=100.0, dim=TURNS, interleaved=interleaved)
        self.library: ctypes.CDLL = compiled("latent", defines, ["turn_store"], folder)
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
    latents = torch.full((SLOTS, LENGTH, RANK), UNUSED).bfloat16()
    keys = torch.full((SLOTS, LENGTH, TURNS), UNUSED).bfloat16()
    launch(
        made.library, "turn_store", (HEADS + 1, tokens), 128, query, compressed, norm.weight,
        made.turns, slots, positions, torch.tensor([active]), turned, latents, keys, LENGTH,
    )  # fmt: skip
    turn = rotation(made.rope, frequencies(made.rope), positions)
    wanted = rotate(made.rope, query[..., PLAIN:], turn)
    assert torch.allclose(turned.float(), wanted.float(), rtol=2**-7, atol=1e-6)
    key = rotate(made.rope, compressed[:, None, RANK:], turn)[:, 0]
    latent = norm(compressed[:, :RANK])
    untouched = torch.ones(SLOTS, LENGTH, dtype=torch.bool)
    for row in range(active):
        at = slots[row], positions[row]
        untouched[at] = False
        assert torch.allclose(latents[at].float(), latent[row].float(), rtol=2**-7, atol=1e-6)
        assert torch.allclose(keys[at].float(), key[row].float(), rtol=2**-7, atol=1e-6)
    assert (latents[untouched] == UNUSED).all(), "only these positions are written"
    assert (keys[untouched] == UNUSED).all()
