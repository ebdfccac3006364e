"""Do the layers that need torch import quietly?"""

from __future__ import annotations

from importlib import import_module

import pytest
from sources import sources

TENSOR_MODULES = [source.module for source in sources() if source.needs_torch]


@pytest.mark.parametrize("module", TENSOR_MODULES)
def test_a_tensor_module_imports_and_prints_nothing(
    module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch", reason="needs the engine extra")
    import_module(module)
    assert capsys.readouterr().out == ""
