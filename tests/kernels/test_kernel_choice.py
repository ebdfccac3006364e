"""Is the kernel that computes the one asked for, the best there is otherwise, and said in words?"""

from __future__ import annotations

import pytest

from moesaic.core.errors import ImpossibleSetting, UnknownName
from moesaic.kernels import instruction_sets
from moesaic.kernels.choose import make_kernel
from moesaic.kernels.instruction_sets import (
    REFERENCE,
    VARIABLE,
    available,
    choose,
    kernel_description,
)
from moesaic.kernels.quantized import QuantizedKernel
from moesaic.kernels.reference import ReferenceKernel
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.without_native

SHAPE = ExpertShape(12, 20)
ISAS = [name for name in available() if name != REFERENCE]


class Pretended:
    """An extension on a CPU that has only these."""

    def __init__(self, *names: str) -> None:
        self._names = names

    def isas(self) -> list[str]:
        return list(self._names)


@pytest.fixture(autouse=True)
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.mark.parametrize("dtype", ["bf16", "int8", "int4"])
@pytest.mark.parametrize("name", ISAS)
def test_a_name_chooses(name: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = make_kernel(SHAPE, dtype, name)
    monkeypatch.setenv(VARIABLE, name)
    by_variable = make_kernel(SHAPE, dtype)
    for kernel in (chosen, by_variable):
        assert getattr(kernel, "isa", None) == name
        assert kernel.runner(kernel.executor(1).pool).isa == name  # type: ignore[attr-defined]


def test_the_reference_is_chosen_by_name_and_for_what_only_it_knows() -> None:
    assert isinstance(make_kernel(SHAPE, "bf16", REFERENCE), ReferenceKernel)
    assert isinstance(make_kernel(SHAPE, "int4", REFERENCE), QuantizedKernel)
    for dtype in ("fp32", "fp16"):
        assert isinstance(make_kernel(SHAPE, dtype), ReferenceKernel)


def test_a_setting_is_stronger_than_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "nonsense")
    assert choose(REFERENCE) == REFERENCE
    with pytest.raises(UnknownName, match="unknown MOESAIC_KERNEL 'nonsense'"):
        choose()


def test_an_empty_variable_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "")
    assert choose() == available()[0]


def test_the_variable_is_named_where_it_asks_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "amx")
    monkeypatch.setattr(instruction_sets, "native", lambda: Pretended("avx2"))
    with pytest.raises(ImpossibleSetting, match=r"^MOESAIC_KERNEL 'amx' needs"):
        choose()


X86 = ("amx", "avx512", "avx512-vnni", "avx512-base", "avx2-vnni", "avx2")


@pytest.mark.parametrize("best", X86)
def test_the_best_of_those_here_is_the_default(best: str, monkeypatch: pytest.MonkeyPatch) -> None:
    here = X86[X86.index(best) :]
    monkeypatch.setattr(instruction_sets, "native", lambda: Pretended(*here))
    assert choose() == best
    assert choose(here[-1]) == here[-1]
    for missing in X86[: X86.index(best)]:
        with pytest.raises(ImpossibleSetting, match=f"{missing}.* this CPU has not got them: use"):
            choose(missing)
    assert kernel_description("avx2").endswith(
        "(this CPU cannot use avx2-vnni)" if best == "avx2" else f"could use {best})"
    )


def test_the_faster_of_two_sets_is_chosen_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extension lists first what it measured to be faster."""
    here = ("avx512-vnni", "avx512", "avx512-base")
    monkeypatch.setattr(instruction_sets, "native", lambda: Pretended(*here))
    assert choose() == "avx512-vnni"
    assert choose("avx512") == "avx512"
    words = kernel_description("avx512-vnni", isa=instruction_sets.NEEDS["avx512"])
    assert words.endswith("(faster here than avx512: measured by loops on registers)")
    assert kernel_description("avx512").endswith("(this CPU could use avx512-vnni)")


def test_an_unknown_name_is_refused_with_a_hint() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'avx512'"):
        make_kernel(SHAPE, "bf16", "avx51")


def test_without_the_extension_pytorch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "native", lambda: None)
    assert available() == (REFERENCE,)
    assert isinstance(make_kernel(SHAPE, "bf16"), ReferenceKernel)
    assert isinstance(make_kernel(SHAPE, "int8"), QuantizedKernel)
    words = kernel_description(choose())
    assert "PyTorch" in words
    assert words.endswith(f"(native kernels: {instruction_sets.why_not_built().why})")
    with pytest.raises(ImpossibleSetting, match=r"amx.* the package was installed without them"):
        choose("amx")


def test_a_cpu_without_any_of_them_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instruction_sets, "native", Pretended)
    assert choose() == REFERENCE
    assert kernel_description(REFERENCE).endswith("(this CPU cannot use avx2)")
