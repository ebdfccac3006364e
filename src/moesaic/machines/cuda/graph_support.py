"""Which models decode as CUDA graphs, and why others do not."""

from __future__ import annotations

import torch

from moesaic.hardware.nvidia import nvidia_driver
from moesaic.kernels.base import ExpertKernel
from moesaic.kernels.native import NativeKernel
from moesaic.model_info.model_spec import ModelSpec
from moesaic.models.decoder import Decoder

_LEAST_WIDTH = 32  # a warp's
_MOST_QUERY_HEADS = 16  # that share a KV head


def why_not(decoder: Decoder, kernel: ExpertKernel) -> str | None:
    """What keeps decode steps from being captured; None: nothing."""
    spec = decoder.architecture.spec
    if decoder.dtype is not torch.bfloat16:
        return f"the network is computed in {str(decoder.dtype).removeprefix('torch.')}, not bf16"
    if decoder.architecture.unusual is not None:
        return f"no kernel of the GPU's decodes a model with {decoder.architecture.unusual}"
    if not isinstance(kernel, NativeKernel):
        return f"experts in {kernel.dtype} have no kernel that both GPU and CPU read"
    if spec.top_k > 32 or spec.hidden_size % 8:
        return "top-k is above 32, or the hidden size no multiple of 8"
    if spec.latent_attention is None and decoder.architecture.rope.interleaved:
        return "neighbours of a head are turned, where kernels turn its halves"
    return _attention(spec) or _streams()


def _attention(spec: ModelSpec) -> str | None:
    latent = spec.latent_attention
    widths = [spec.head_dim]
    if latent is not None:
        widths = [latent.kv_lora_rank, latent.qk_rope_head_dim]
    if any(width & (width - 1) or width < _LEAST_WIDTH for width in widths):
        return f"a head's width is no power of two, or below {_LEAST_WIDTH}"
    if latent is None and spec.num_heads // spec.num_kv_heads > _MOST_QUERY_HEADS:
        return f"more than {_MOST_QUERY_HEADS} query heads share a KV head"
    return None


def _streams() -> str | None:
    gpus = nvidia_driver().gpus
    if not gpus or not gpus[torch.cuda.current_device()].stream_memory_operations:
        return "this GPU or its driver has no stream memory operations"
    return None
