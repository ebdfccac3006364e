"""How an accelerator keeps dense matrices in int8 or int4: row after row of codes, and scales apart
(kernels/quantized_matrix.py). How many bytes that takes. Knows no weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from moesaic.core.dtypes import weight_bytes
from moesaic.model_info.dense_bytes import DensePrecision, projections
from moesaic.model_info.expert_block import FORMATS, SCALE_BYTES, GroupFormat
from moesaic.model_info.model_spec import ModelSpec

READ = 16  # bytes that a GPU's lane reads at once: a row is a whole number of them
SCRATCH = 1 << 24  # weights of a matrix that are widened at once on a GPU, at most
PIECE = 1 << 22  # the same, by PyTorch
PIECE_BYTES = 8  # that PyTorch takes for one of them: its code, in fp32, rounded


class DenseMatrix(NamedTuple):
    """So many layers' matrix of a network; matrices that are multiplied as one count as one."""

    layers: int
    dtype: str  # that was asked for; bf16: not packed
    outputs: int
    inputs: int

    @property
    def params(self) -> int:
        return self.layers * self.outputs * self.inputs

    @property
    def bytes(self) -> int:
        return self.layers * rows_bytes(self.dtype, self.outputs, self.inputs)


def row_bytes(form: GroupFormat, inputs: int) -> int:
    """The bytes of one row's codes."""
    return -(-inputs * form.bits // (8 * READ)) * READ


def rows_bytes(dtype: str, outputs: int, inputs: int) -> int:
    """The bytes of one matrix, with its scales."""
    form = FORMATS[dtype]
    return outputs * (row_bytes(form, inputs) + SCALE_BYTES * form.groups(inputs))


def quantized_dense_bytes(spec: ModelSpec, dtype: str, packed: DensePrecision) -> int:
    """Everything but the routed experts, up to norms and biases; `dtype` is of what is not
    quantised. A tied embedding is there twice if the head is."""
    quantized = [each for each in _matrices(spec, packed) if each.dtype in FORMATS]
    kept = spec.resident_params - sum(each.params for each in quantized)
    if spec.tied_embeddings and packed.head in FORMATS:
        kept += spec.head_params
    return weight_bytes(kept, dtype) + sum(each.bytes for each in quantized)


def scratch_weights(spec: ModelSpec, packed: DensePrecision, most: int) -> int:
    """Weights that are widened at once, at most: the largest quantised matrix, or a piece of it."""
    quantized = (each for each in _matrices(spec, packed) if each.dtype in FORMATS)
    return max((_at_once(each.outputs, each.inputs, most) for each in quantized), default=0)


def _at_once(outputs: int, inputs: int, most: int) -> int:
    return min(outputs, piece_rows(inputs, most)) * inputs


def piece_rows(inputs: int, most: int) -> int:
    """Rows of a matrix with so many inputs that are widened at once."""
    return max(most // inputs, 1)


def _matrices(spec: ModelSpec, packed: DensePrecision) -> Iterator[DenseMatrix]:
    hidden, moe = spec.hidden_size, spec.num_moe_layers
    yield DenseMatrix(1, packed.head, spec.vocab_size, hidden)
    for outputs, inputs in _joined(spec):
        yield DenseMatrix(spec.kv_layers, packed.attention, outputs, inputs)
    if spec.linear_attention is not None:
        for outputs, inputs in spec.linear_attention.projections(hidden):
            yield DenseMatrix(len(spec.linear_layers), packed.attention, outputs, inputs)
    networks = ((moe, spec.shared_intermediate), (spec.num_layers - moe, spec.dense_intermediate))
    for layers, inner in networks:
        if layers and inner:
            yield DenseMatrix(layers, packed.feed_forward, 2 * inner, hidden)
            yield DenseMatrix(layers, packed.feed_forward, hidden, inner)


def _joined(spec: ModelSpec) -> list[tuple[int, int]]:
    """Outputs and inputs of one layer's projections; queries, keys and values are one, and so are
    queries and latents that have the same inputs (models/placed.py)."""
    separate, latent = projections(spec), spec.latent_attention
    if latent is not None and latent.q_lora_rank is not None:
        return separate
    joined = 3 if latent is None else 2
    return [
        (sum(outputs for outputs, _ in separate[:joined]), spec.hidden_size),
        *separate[joined:],
    ]
