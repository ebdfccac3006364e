"""Tensors of a checkpoint that the network does not read: harmless by name, or refused."""

from __future__ import annotations

import re

import torch

from moesaic.core.errors import BadCheckpoint
from moesaic.models.checkpoints.named_tensors import NamedTensors
from moesaic.models.configs.architecture import Architecture
from moesaic.models.configs.families import RUNNABLE

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"(?:model\.layers|blk)\.([0-9]{1,9})\.")  # the second in GGUF files
_NAMED = 3  # of the tensors a message is about


def refuse_unread(checkpoint: NamedTensors, architecture: Architecture) -> None:
    """Once everything that will be read was asked for: the rest must be known not to matter."""
    unread = [name for name in checkpoint.unread() if not _is_harmless(name, architecture)]
    if not unread:
        return
    source = checkpoint.described_by
    others = f" and {len(unread) - _NAMED} more" if len(unread) > _NAMED else ""
    raise BadCheckpoint(
        checkpoint.file_of(unread[0]),
        ", ".join(unread[:_NAMED]) + others,
        f"nothing in {architecture.spec.family} as {source} describes it uses this, so the "
        f"answers would be another model's: correct {source} (its numbers of layers and "
        "experts, its biases), or remove what does not belong to the model",
    )


def _is_harmless(name: str, architecture: Architecture) -> bool:
    # Older files have rotary frequencies, which follow from the config.
    if name.endswith(".rotary_emb.inv_freq"):
        return True
    # A second copy of the embedding; that it is one, `check_tied_head` finds out.
    if name == HEAD:
        return architecture.spec.tied_embeddings
    # Layers that predict further tokens, for speculative decoding: some families' have a name,
    # others follow the last. Where configs say how many there are, none may be there unsaid.
    family = RUNNABLE[architecture.spec.family]
    if name.startswith(family.unused_prefixes):
        return not family.predicts_further or architecture.unused_layers > 0
    layer, last = _LAYER.match(name), architecture.spec.num_layers
    return layer is not None and last <= int(layer[1]) < last + architecture.unused_layers


def check_tied_head(checkpoint: NamedTensors, architecture: Architecture) -> None:
    """Check that a file's head equals the embedding, where the embedding serves as the head."""
    spec = architecture.spec
    if not spec.tied_embeddings or HEAD not in checkpoint:
        return
    shape = (spec.vocab_size, spec.hidden_size)
    if not torch.equal(checkpoint.read(HEAD, shape), checkpoint.read(EMBEDDING, shape)):
        raise BadCheckpoint(
            checkpoint.file_of(HEAD),
            HEAD,
            f"differs from {EMBEDDING}, although tie_word_embeddings is true: set it to false",
        )
