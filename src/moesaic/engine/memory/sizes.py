"""How many bytes everything takes that a running model needs. Allocates nothing, needs no torch,
and knows no limits.
"""

from __future__ import annotations

from dataclasses import dataclass

from moesaic.core.dtypes import weight_bytes
from moesaic.core.errors import ImpossibleSetting
from moesaic.engine.dense_weights import packed_dtype
from moesaic.engine.engine_settings import DTYPES, EngineSettings
from moesaic.machines.accelerators import LARGEST_BATCH, LARGEST_PROMPT, SMALLEST_PROMPT
from moesaic.model_info.dense_bytes import DensePrecision, packed_dense_bytes
from moesaic.model_info.dense_rows import (
    PIECE,
    PIECE_BYTES,
    SCRATCH,
    quantized_dense_bytes,
    scratch_weights,
)
from moesaic.model_info.expert_block import FORMATS, TILES, block_bytes
from moesaic.model_info.expert_workspace import (
    Heads,
    attention_workspace,
    linear_workspace,
    native_workspace,
)
from moesaic.model_info.kv_blocks import KV_BLOCK, blocks_of
from moesaic.model_info.kv_dtypes import AS_COMPUTED, INT8, kv_token_bytes
from moesaic.model_info.model_spec import LatentAttentionSizes, ModelSpec
from moesaic.model_info.published_dtypes import published_dtypes
from moesaic.model_info.sliding_window import SCORES, window_rows

_PIECE = 1 << 22  # weights of a quantised expert that are unpacked at a time

PIECE_LENGTH = 256  # positions (kernels/gpu/attention.py)
SINGLE_PIECE_LENGTH, MOST_PIECES = 64, 64  # of one token (kernels/gpu/latent_attention.py)
# Sequences that are sampled at once, and bytes of each one's counts (kernels/gpu/sampling.py).
SAMPLING = 32, 4 * (65536 + 64)


@dataclass(frozen=True, slots=True)
class Sizes:
    """One model in one precision; `sequences` at once, at most `step_tokens` new tokens a step."""

    spec: ModelSpec
    dtype: str  # of everything but the routed experts; computations are in it
    expert_dtype: str
    sequences: int
    step_tokens: int
    lanes: int = 1  # devices that compute experts at the same time
    threads: int = 1  # of each, at most
    packed: DensePrecision | None = None  # of dense matrices that are packed; None: `dtype`
    by_rows: bool = False  # for an accelerator, not for native kernels
    native: bool = False  # whether native kernels compute the CPU's experts
    kv_dtype: str = AS_COMPUTED  # of layers that keep every token

    @classmethod
    def of(cls, spec: ModelSpec, settings: EngineSettings) -> Sizes:
        """The precisions; where settings say `auto`, as the model was published. Experts follow the
        rest, unless they were published in integers."""
        published = published_dtypes(spec)
        dtype = published.dense if settings.dtype == "auto" else settings.dtype
        expert_dtype = settings.expert_dtype
        if expert_dtype == "auto":
            expert_dtype = dtype if published.experts in DTYPES else published.experts
        if expert_dtype not in (dtype, *FORMATS):
            raise ImpossibleSetting(
                f"experts in {expert_dtype} cannot be computed with activations in {dtype}: use "
                f"--expert-dtype {dtype}, int8 or int4, or --dtype {expert_dtype}"
            )
        lanes = len(settings.capabilities.devices)
        step_tokens = max(settings.step_tokens, settings.sequences)
        threads = settings.threads or settings.cores
        packed = packed_dtype(settings, dtype)
        sequences = settings.sequences
        by_rows = settings.capabilities.moves
        native = expert_dtype in TILES and settings.native_kernels
        return cls(
            spec, dtype, expert_dtype, sequences, step_tokens, lanes, threads, packed, by_rows,
            native, settings.kv_dtype,
        )  # fmt: skip

    @property
    def dense(self) -> int:
        """Everything but the routed experts, up to norms and biases."""
        if self.packed is None:
            return weight_bytes(self.spec.resident_params, self.dtype)
        count = quantized_dense_bytes if self.by_rows else packed_dense_bytes
        return count(self.spec, self.dtype, self.packed)

    @property
    def block(self) -> int:
        """One packed expert."""
        spec = self.spec
        sizes = (spec.hidden_size, spec.expert_intermediate)
        return block_bytes(self.expert_dtype, *sizes, spec.expert_bias)

    @property
    def store(self) -> int:
        return self.spec.num_expert_blocks * self.block

    @property
    def gate_bank(self) -> int:
        """All routers once more, for looking ahead."""
        return weight_bytes(self.spec.num_moe_layers * self.spec.router_params, self.dtype)

    def kv_cache(self, length: int, tokens: int | None = None) -> int:
        """For `tokens` of all sequences together; None: in whole blocks, as many as they can need.
        Layers with a sliding window keep as many tokens of each sequence as they may need."""
        spec = self.spec
        windowed = len(spec.window_layers)
        if tokens is None:
            tokens = self.sequences * KV_BLOCK * blocks_of(length)
        rows = self.sequences * windowed * self.window_rows(length)
        windows = weight_bytes(rows * spec.kv_values_per_token, self.dtype)
        return windows + (spec.kv_layers - windowed) * tokens * self.kv_token

    @property
    def kv_block(self) -> int:
        """A block of the KV cache, in all layers that have blocks."""
        layers = self.spec.kv_layers - len(self.spec.window_layers)
        return layers * KV_BLOCK * self.kv_token

    @property
    def kv_token(self) -> int:
        """A token in one of these layers."""
        return kv_token_bytes(self.spec, self.dtype, self.kv_dtype)

    @property
    def checkpoint(self) -> int:
        """What layers with a window or a state hold of one sequence, in host memory."""
        spec, linear = self.spec, self.spec.linear_attention
        window = len(spec.window_layers) * spec.sliding_window * spec.kv_values_per_token
        state = 0 if linear is None else linear.kept_bytes(self.dtype) - linear.state_bytes
        return weight_bytes(window, self.dtype) + state * len(spec.linear_layers)

    @property
    def states(self) -> int:
        """The size of layers with linear attention, whatever the length of a sequence."""
        linear = self.spec.linear_attention
        if linear is None:
            return 0
        return self.sequences * len(self.spec.linear_layers) * linear.kept_bytes(self.dtype)

    @property
    def per_sequence(self) -> int:
        """What each holds at least, if it may be long, however short it is."""
        spec = self.spec
        rows = len(spec.window_layers) * self.window_rows(spec.max_context or 1 << 20)
        windows = weight_bytes(rows * spec.kv_values_per_token, self.dtype)
        return windows + self.states // self.sequences

    def window_rows(self, length: int) -> int:
        """Tokens of a sequence that a layer with a window keeps."""
        return window_rows(self.spec.sliding_window, length, self.step_tokens)

    def workspace(self, length: int) -> int:
        """Temporaries of one step, at most: what is alive in the layer (or the head) that needs
        most, with a sequence of this length."""
        tokens = min(self.step_tokens, self.sequences * length)
        # In fp32: the residual stream, its sum, a normalised copy and its square, what lanes add.
        stream = 4 * tokens * self.spec.hidden_size * (4 + self.lanes)
        kept, experts = self.lanes * self.kernel_workspace(tokens), self._layer(tokens)
        if not self.native:  # nothing is kept between layers
            kept, experts = 0, experts + kept
        parts = (self._attention(tokens, length), experts, self._head())
        return stream + max(parts) + kept + self._packed_products(tokens)

    def _packed_products(self, tokens: int) -> int:
        """A panel of all tokens, every worker's sums, and what attention of prompts keeps; results
        are counted where they are. For an accelerator, weights that are widened at once."""
        if self.packed is None:
            return 0
        if self.by_rows:
            return PIECE_BYTES * scratch_weights(self.spec, self.packed, PIECE)
        spec = self.spec
        widest = max(spec.hidden_size, spec.num_heads * spec.head_dim)
        if spec.linear_attention is not None:
            widest = max(widest, spec.linear_attention.channels)
        workers = self.threads + 1
        products = linear_workspace(widest, tokens, workers)
        return products + attention_workspace(_heads(spec), tokens, workers)

    def device_workspace(self, length: int) -> int:
        """The same of a device with a memory of its own, where the host computes experts beside
        it: buffers of its expert kernels stay, and only logits come from the head."""
        tokens = min(self.step_tokens, self.sequences * length)
        stream = 4 * tokens * self.spec.hidden_size * (4 + self.lanes)
        logits = 2 * 4 * self.sequences * self.spec.vocab_size
        experts = self._layer(tokens) + self.torch_workspace(tokens)
        parts = (self._attention(tokens, length), experts, logits)
        return self.pair_buffers + stream + max(parts) + self._widened()

    def _widened(self) -> int:
        """The size of dense weights in integers that kernels, or PyTorch, widen to bf16 at once."""
        if self.packed is None:
            return 0
        if self.dtype == "bf16":
            return 2 * scratch_weights(self.spec, self.packed, SCRATCH)
        return PIECE_BYTES * scratch_weights(self.spec, self.packed, PIECE)

    def graphs(self, length: int) -> int:
        """What captured steps keep: pieces of attention and logits for batches of every size, some
        three times what the largest needs; a prompt's activations, which all sizes share, and its
        queries, streams and results, which they do not; counts for sampling."""
        if not self.pair_buffers:
            return 0
        spec, batch = self.spec, min(self.sequences, LARGEST_BATCH)
        pieces = spec.num_heads * -(-length // PIECE_LENGTH) * (_widest_value(spec) + 2)
        decoding = 3 * batch * 4 * (pieces + spec.vocab_size) + self._single_pieces(length)
        width = spec.num_heads * spec.head_dim + 3 * spec.hidden_size
        reading = self.step_tokens * 2 * (3 * width + 3 * spec.head_dim * spec.num_heads)
        sampled, counts = SAMPLING
        return decoding + reading + self.latent_buffers + min(self.sequences, sampled) * counts

    def _single_pieces(self, length: int) -> int:
        """The pieces of latent attention of one token, which is cut finer, in up to three kinds of
        steps."""
        if self.spec.latent_attention is None:
            return 0
        pieces = min(-(-length // SINGLE_PIECE_LENGTH), MOST_PIECES)
        return 3 * 4 * self.spec.num_heads * pieces * (_widest_value(self.spec) + 2)

    @property
    def latent_buffers(self) -> int:
        """Queries and results of prompts with latent attention, in bf16: one memory for steps of
        all sizes (`machines/captured/latent_buffers.py`)."""
        latent = self.spec.latent_attention
        if latent is None or not self.pair_buffers:
            return 0
        prompt = min(max(self.step_tokens, SMALLEST_PROMPT), LARGEST_PROMPT)
        rows = max(prompt, min(self.sequences, LARGEST_BATCH))
        return 2 * 2 * rows * self.spec.num_heads * latent.kv_lora_rank

    @property
    def pair_buffers(self) -> int:
        """The buffers of the GPU's expert kernels, for every pair of a token and an expert: its
        activations in bf16 and its result in fp32. Other precisions are computed by PyTorch."""
        if self.dtype != "bf16" or self.expert_dtype not in TILES:
            return 0
        spec, pairs = self.spec, self.step_tokens * self.spec.top_k
        return pairs * (2 * spec.expert_intermediate + 4 * spec.hidden_size)

    def host_workspace(self, length: int) -> int:
        """What is left to the host beside such a device: the CPU's experts, hidden states, sums and
        routing on their way, and sampling."""
        spec, tokens = self.spec, min(self.step_tokens, self.sequences * length)
        routing = 2 * tokens * (spec.num_experts + spec.top_k)
        on_the_way = 4 * (2 * tokens * spec.hidden_size + routing)
        return self.kernel_workspace(tokens) + on_the_way + self._head()

    def _attention(self, tokens: int, length: int) -> int:
        """Projections of all tokens; then one sequence after the other."""
        spec, latent = self.spec, self.spec.latent_attention
        new = min(tokens, length)
        projected = 4 * tokens * 3 * spec.head_dim * (spec.num_heads + 2 * spec.num_kv_heads)
        if latent is not None:
            each = _latent_bytes(latent, spec.num_heads, new) + self._widened_values
            return projected + length * each
        if len(spec.window_layers) == spec.num_layers:
            length = min(length, spec.sliding_window - 1 + new)
        copies = weight_bytes(length * spec.kv_values_per_token, self.dtype)
        copies += length * self._widened_values
        scores = 0
        if spec.attention_sinks:  # in fp32, and rounded: of a piece of the new tokens
            row, each = spec.num_heads * length, 4 if self.dtype == "fp32" else 14
            scores = each * max(row, min(SCORES, new * row))
        needed = projected + copies + scores + 5 * new * length  # a mask as bools and as numbers
        if spec.linear_attention is not None:
            needed = max(needed, spec.linear_attention.workspace(tokens))
        return needed

    @property
    def _widened_values(self) -> int:
        """Of a cached token, what PyTorch makes of codes on the way to a copy: they and fp32."""
        return 5 * self.spec.kv_values_per_token if self.kv_dtype == INT8 else 0

    def _layer(self, tokens: int) -> int:
        """The router's scores and the shared experts, or a dense layer."""
        spec = self.spec
        scores = 4 * tokens * spec.num_experts * 6
        wide = max(spec.shared_intermediate, spec.dense_intermediate)
        dense = self._feed_forward(tokens, wide) if wide else 0
        return scores + dense

    def kernel_workspace(self, tokens: int) -> int:
        """What kernels need on one lane: PyTorch for one expert; the native ones for a layer, which
        they keep."""
        needed = self.torch_workspace(tokens)
        if not self.native:
            return needed
        spec = self.spec
        sizes = (spec.hidden_size, spec.expert_intermediate, tokens, spec.top_k, self.threads + 1)
        return max(needed, native_workspace(self.expert_dtype, *sizes))

    def torch_workspace(self, tokens: int) -> int:
        hidden, inner = self.spec.hidden_size, self.spec.expert_intermediate
        needed = self._feed_forward(tokens, inner)
        if self.expert_dtype in FORMATS:
            piece = max(hidden, inner, min(_PIECE, 2 * hidden * inner))
            needed += 6 * piece + 4 * tokens * (hidden + 2 * inner)
        return needed

    def _feed_forward(self, tokens: int, inner: int) -> int:
        return 4 * tokens * (3 * self.spec.hidden_size + 4 * inner)

    def _head(self) -> int:
        """Logits, and in fp32 what sampling makes of them: scores, sorted ones with their
        numbers, probabilities, log-probabilities."""
        return self.sequences * self.spec.vocab_size * 4 * 7


def _heads(spec: ModelSpec) -> Heads:
    """The heads as attention of prompts sees them: those of expanded latents are all different."""
    latent = spec.latent_attention
    if latent is None:
        return Heads(spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.head_dim)
    width = latent.qk_nope_head_dim + latent.qk_rope_head_dim
    return Heads(spec.num_heads, spec.num_heads, width, latent.v_head_dim)


def _latent_bytes(latent: LatentAttentionSizes, heads: int, new: int) -> int:
    """Per cached token: scores and their softmax in fp32; for many new tokens, keys of all heads
    twice and values once in fp32, made from the latents; for few, the one key they share."""
    rank, rope = latent.kv_lora_rank, latent.qk_rope_head_dim
    plain, value = latent.qk_nope_head_dim, latent.v_head_dim
    made = 4 * heads * (3 * (plain + rope) + 2 * value)
    few = rank * (plain + value) // max(2 * rank - plain - value, 1)  # as the attention decides
    absorbed = 4 * (rank + rope) + 14 * heads * min(new, few)
    return max(made + 8 * heads * new if new > few else 0, absorbed)


def _widest_value(spec: ModelSpec) -> int:
    latent = spec.latent_attention
    return spec.head_dim if latent is None else latent.kv_lora_rank
