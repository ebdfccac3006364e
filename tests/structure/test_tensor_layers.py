"""Do the layers that need torch import quietly?"""

from __future__ import annotations

from importlib import import_module

import pytest
from sources import sources

from moesaic.kernels.instruction_sets import native

pytestmark = pytest.mark.without_native

# Without the compiled extension nothing imports them.
NATIVE_MODULES = (
    "moesaic.kernels.native",
    "moesaic.kernels.native_executor",
    "moesaic.machines.captured.cpu_runner",
    "moesaic.machines.captured.captured",
    "moesaic.machines.captured.graph_steps",
    "moesaic.machines.captured.graph_support",
    "moesaic.machines.cpu_step.cpu_step",
    "moesaic.machines.cpu_step.native_step",
    "moesaic.machines.cpu_step.step_description",
)
# These come with a C++ compiler, on every processor, and serve the machine with a GPU only.
CONDUCTOR_MODULES = (
    "moesaic.lab.profile.cuda_description",
    "moesaic.lab.profile.cuda_profile",
    "moesaic.lab.profile.cuda_times",
    "moesaic.lab.profile.decode_samples",
    "moesaic.lab.profile.link_times",
    "moesaic.machines.captured.captured_spans",
    "moesaic.machines.captured.captured_step",
    "moesaic.machines.captured.conductor",
    "moesaic.machines.captured.cpu_runner",
    "moesaic.machines.captured.link_spans",
    "moesaic.machines.captured.recorded_forecasts",
)
# Triton comes with PyTorch's CUDA builds.
TRITON_MODULES = (
    "moesaic.kernels.gpu.attention",
    "moesaic.kernels.gpu.latent_attention",
    "moesaic.kernels.gpu.latent_prompt_attention",
    "moesaic.kernels.gpu.prompt_attention",
    "moesaic.machines.captured.decode_step",
    "moesaic.machines.captured.prompt_step",
    "moesaic.machines.captured.step_attention",
)
TENSOR_MODULES = [source.module for source in sources() if source.needs_torch]
RAY_MODULES = ("moesaic.serve.replicas.router",)


@pytest.mark.parametrize("module", TENSOR_MODULES)
def test_a_tensor_module_imports_and_prints_nothing(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs the engine extra")
    if module.startswith(NATIVE_MODULES) and native() is None:
        pytest.skip("the package was installed without native kernels")
    if module in TRITON_MODULES:
        pytest.importorskip("triton")
    if module in CONDUCTOR_MODULES:
        pytest.importorskip("moesaic.machines.captured._conductor")
    if module in RAY_MODULES:
        pytest.importorskip("ray", reason="needs the ray extra")
    import_module(module)
    assert capsys.readouterr().out == ""
