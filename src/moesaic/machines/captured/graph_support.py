"""Whether a loaded model decodes as CUDA graphs on this machine, and why not."""

from __future__ import annotations

import torch

from moesaic.hardware.nvidia import nvidia_driver
from moesaic.kernels.base import ExpertKernel
from moesaic.kernels.native import NativeKernel
from moesaic.machines.support import ExecutorKind, refusal
from moesaic.model_info.kv_dtypes import AS_COMPUTED
from moesaic.models.decoder import Decoder


def why_layerwise(
    decoder: Decoder, kernel: ExpertKernel, kv_dtype: str = AS_COMPUTED
) -> str | None:
    """What keeps decode steps from being captured; None: nothing."""
    lacking = refusal(ExecutorKind.CAPTURED, decoder.architecture.network, kv_dtype)
    if lacking is not None:
        return lacking
    if decoder.dtype is not torch.bfloat16:
        return f"the network is computed in {str(decoder.dtype).removeprefix('torch.')}, not bf16"
    if not isinstance(kernel, NativeKernel):
        return f"experts in {kernel.dtype} have no kernel that both GPU and CPU read"
    return _streams()


def _streams() -> str | None:
    gpus = nvidia_driver().gpus
    if not gpus or not gpus[torch.cuda.current_device()].stream_memory_operations:
        return "this GPU or its driver has no stream memory operations"
    return None
