"""A recipe that trains in seconds, a corpus for it, and what `prepare` makes of them."""

from __future__ import annotations

import atexit
import json
import lzma
import shutil
import tempfile
from functools import cache
from importlib.resources import files
from pathlib import Path

import torch
from training.network import Network
from training.prepare import prepare
from training.recipe import Data, Recipe, Run, Shape

SHAPE = Shape(
    vocabulary=400,
    hidden=32,
    layers=2,
    heads=2,
    experts=8,
    top_k=4,
    expert_width=16,
    context=128,
    rope_theta=5000.0,  # not the default: it must be passed on
)
RECIPE = Recipe(
    SHAPE,
    Data(rows=8, shard_problems=60),
    run=Run(
        steps=24,
        evaluate_every=24,
        checkpoint_every=100,
        loss_rows=2,
        exact_problems=3,
        answer_tokens=12,
    ),
)


def write_corpus(folder: Path, documents: int = 120) -> Path:
    """Sentences of a page in changing order, as books that cannot be told apart."""
    page = (files("moesaic.cli.study") / "data" / "quality_text.txt").read_text(encoding="utf-8")
    sentences = page.replace("\n", " ").split(". ")
    folder.mkdir(parents=True, exist_ok=True)
    with lzma.open(folder / "page.jsonl.xz", "wt", encoding="utf-8") as stream:
        for number in range(documents):
            turned = sentences[number % len(sentences) :][:8]
            text = f"Document {number}. " + ". ".join(turned)
            stream.write(json.dumps({"title": str(number), "text": text}) + "\n")
    return folder


@cache
def prepared() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="moesaic-training-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    prepare(write_corpus(folder / "corpus"), folder / "ready", SHAPE.vocabulary, problems=200)
    return folder / "ready"


def random_network(shape: Shape = SHAPE, seed: int = 0) -> Network:
    """With no zeros anywhere, so that every part of it matters."""
    torch.manual_seed(seed)
    network = Network(shape)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            noise = torch.randn(weight.shape)
            if weight.dim() == 1:
                weight.copy_(1 + 0.2 * noise)
            else:
                weight.copy_(noise * (0.5 if "embed" in name else weight.shape[-1] ** -0.5))
    network.eval()
    return network
