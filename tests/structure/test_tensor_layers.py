"""Do the layers that need torch import quietly?"""

from __future__ import annotations

from importlib import import_module

import pytest
from sources import sources

from moesaic.kernels.instruction_sets import native

# Without the compiled extension nothing imports them.
NATIVE_MODULES = ("moesaic.kernels.native", "moesaic.kernels.numa_executor")
TENSOR_MODULES = [source.module for source in sources() if source.needs_torch]


@pytest.mark.parametrize("module", TENSOR_MODULES)
def test_a_tensor_module_imports_and_prints_nothing(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs the engine extra")
    if module.startswith(NATIVE_MODULES) and native() is None:
        pytest.skip("the package was installed without native kernels")
    import_module(module)
    assert capsys.readouterr().out == ""
