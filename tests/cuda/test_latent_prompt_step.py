"""Does latent attention of a captured prompt step, its launches made one by one in Triton's
interpreter, say what the network says layer by layer?"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from made_up import long

pytest.importorskip("triton")
pytest.importorskip("moesaic.machines.captured._conductor")
if torch.cuda.is_available():
    pytest.skip("test_graph_decoding.py reads whole prompts on a GPU", allow_module_level=True)

from graph_models import shrunk

from cuda_on_host import COMPILER, compiled, launch
from moesaic.kernels.gpu.prompt_attention import most_tiles, tiles_of
from moesaic.machines.captured.attention_parts import latent_defines
from moesaic.machines.captured.latent_buffers import LatentBuffers
from moesaic.machines.captured.prompt_step import LatentPromptStepAttention
from moesaic.models.attentions.kv_cache import BlockCache
from moesaic.models.attentions.latent_attention import LatentAttention
from moesaic.models.attentions.rope import rotation
from moesaic.models.configs.architecture import Architecture
from moesaic.models.linear import Linear
from moesaic.models.synthetic_model import synthetic_decoder
from moesaic.models.token_batch import Segment, make_batch
from network_changes import with_rope
from scattered_blocks import scatter

EARLIER = (Segment(0, 40), Segment(2, 3))
PIECES = (Segment(0, 1), Segment(1, 70), Segment(2, 5))  # decoding, a whole prompt, a piece
ROWS, UNUSED = 80, 4


def with_yarn(architecture: Architecture) -> Architecture:
    """As DeepSeek's configurations state it."""
    return with_rope(
        architecture, kind="yarn", factor=40.0, original_context=64, magnitude=1.2
    )  # fmt: skip


def in_halves(architecture: Architecture) -> Architecture:
    return with_rope(architecture, interleaved=False)


class OneLayer:
    """What a step's attention asks of the residual stream, on the CPU."""

    def __init__(
        self, architecture: Architecture, x: torch.Tensor, earlier: torch.Tensor, folder: Path
    ) -> None:
        self.folder = folder
        self.decoder = synthetic_decoder(architecture, "bf16", "reference")
        attention = self.decoder.layers[0].attention
        assert isinstance(attention, LatentAttention)
        self.attention, self.x = attention, x
        self.cache = BlockCache(architecture.spec, 4, 96, torch.bfloat16)
        scatter(self.cache)
        self.layerwise(earlier, EARLIER)
        for slot, tokens in EARLIER:
            self.cache.advance(slot, tokens)
        self.added = torch.zeros(0)

    def layerwise(self, x: torch.Tensor, segments: tuple[Segment, ...]) -> torch.Tensor:
        decoder = self.decoder
        batch = make_batch(decoder.frequencies, segments, self.cache, decoder.device)
        return self.attention(x, batch)

    def captured(self) -> torch.Tensor:
        before = [(slot, self.cache.length(slot), tokens) for slot, tokens in PIECES]
        tiles = torch.zeros(most_tiles(ROWS, 4), 4, dtype=torch.int64)
        found = tiles_of(before)
        tiles[: len(found)] = torch.tensor(found)
        padding = [0] * UNUSED
        slots = [slot for slot, _, tokens in before for _ in range(tokens)] + padding
        positions = [first + i for _, first, tokens in before for i in range(tokens)] + padding
        inputs: Any = SimpleNamespace(
            tokens=ROWS, slots=torch.tensor(slots), positions=torch.tensor(positions),
            active=torch.tensor([ROWS - UNUSED]),
        )  # fmt: skip
        spec = self.decoder.architecture.spec
        assert spec.latent_attention is not None
        rank = spec.latent_attention.kv_lora_rank
        shared = LatentBuffers(2 * ROWS, spec.num_heads, rank, "cpu")
        for part in shared.of(2 * ROWS):
            part.fill_(float("nan"))  # what another step has left
        parts: Any = SimpleNamespace(
            decoder=self.decoder, cache=self.cache,
            attentions={self.attention.spec: SimpleNamespace(
                first=0, turn_pairs=self._turns(), latent_prompts=shared.of,
                kernels={"turn_store": self._kernel()},
            )},
        )  # fmt: skip
        pieces: Any = SimpleNamespace(tiles=tiles)
        residual: Any = self
        launched = LatentPromptStepAttention(parts, inputs, self.attention.spec, pieces)
        launched.launch(residual, 0, self.attention, torch.zeros(0))
        return self.added

    def normed(self, _: torch.Tensor) -> torch.Tensor:
        return self.x

    def add_product(self, linear: Linear, x: torch.Tensor) -> None:
        self.added = linear(x)

    def _turns(self) -> torch.Tensor:
        ((rope, inverse),) = self.decoder.frequencies.items()
        return torch.cat(rotation(rope, inverse, torch.arange(self.cache.max_length)), dim=1)

    def _kernel(self) -> Any:
        """The kernel's own source, on the CPU."""
        library = compiled(
            "latent", latent_defines(self.attention.spec), ["turn_store"], self.folder
        )

        def run(grid: tuple[int, int], threads: int, *arguments: Any, early: bool) -> None:
            assert early
            launch(library, "turn_store", grid, threads, *arguments)

        return run


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")
@pytest.mark.parametrize(
    ("name", "change"),
    [("deepseek-v2-lite", with_yarn), ("deepseek-v3", in_halves), long("deepseek-v3", with_yarn)],
)
def test_pieces_are_attended_to_as_layer_by_layer(name: str, change: Any, tmp_path: Path) -> None:
    torch.manual_seed(1)
    architecture = change(shrunk(name))
    hidden = architecture.spec.hidden_size
    x, earlier = (torch.randn(rows, hidden).bfloat16() for rows in (ROWS, 43))
    layer = OneLayer(architecture, x, earlier, tmp_path)
    got = layer.captured()[: ROWS - UNUSED].double()
    filled = layer.cache.first.clone(), layer.cache.second.clone()
    want = layer.layerwise(x[: ROWS - UNUSED], PIECES).double()
    for captured, layerwise in zip(filled, (layer.cache.first, layer.cache.second), strict=True):
        assert torch.equal(captured, layerwise), "unused rows are not remembered"
    error = (got - want).norm(dim=1) / want.norm(dim=1)
    assert error.max() < 0.02
