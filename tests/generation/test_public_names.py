"""Do the package's public names come when asked for, and cost nothing before?"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import moesaic
from moesaic.engine.llm import LLM
from moesaic.engine.sampling.sampling_params import SamplingParams

WITHOUT_TORCH = """
import sys

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("no torch here", name="torch")

sys.meta_path.insert(0, NoTorch())
from moesaic import PolicySet, SamplingParams, compare, load_machine, load_model, policy, simulate
try:
    from moesaic import LLM
except Exception as error:
    print(type(error).__name__, error)
"""


def python(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_naming_the_package_loads_nothing_heavy() -> None:
    loaded = python("import moesaic, sys; print(*sys.modules)").split()
    assert "moesaic" in loaded
    assert not {"torch", "numpy", "numba", "tokenizers"} & set(loaded)


def test_public_names_are_what_they_are_at_home() -> None:
    assert moesaic.LLM is LLM
    assert moesaic.SamplingParams is SamplingParams
    assert all(getattr(moesaic, name) for name in moesaic.__all__)
    with pytest.raises(AttributeError, match="LMM"):
        moesaic.LMM  # type: ignore[attr-defined]  # noqa: B018


def test_the_interpreter_completes_public_names() -> None:
    """Without loading what they stand for."""
    listed = python("import moesaic, sys; print(*dir(moesaic), 'torch' in sys.modules)").split()
    assert {*moesaic.__all__, "__version__"} <= set(listed)
    assert listed[-1] == "False"
    assert {name for name in listed[:-1] if not name.startswith("_")} == set(moesaic.__all__)


def test_without_torch_the_error_says_what_to_install() -> None:
    said = python(WITHOUT_TORCH)
    assert said.startswith("MissingExtra")
    assert "pip install 'moesaic[engine]'" in said


@pytest.mark.parametrize(("set_to", "found"), [(None, "passive"), ("active", "active")])
def test_threads_sleep_at_barriers_by_default(set_to: str | None, found: str) -> None:
    """Spinning ones collapse as soon as another program wants a core."""
    environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    if set_to is not None:
        environment["OMP_WAIT_POLICY"] = set_to
    code = "import os, moesaic; print(os.environ['OMP_WAIT_POLICY'])"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == found
