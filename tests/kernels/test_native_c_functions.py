"""Do callers without Python get the same results, and error codes with messages?"""

from __future__ import annotations

import ctypes
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int32,
    c_size_t,
    c_uint32,
    c_void_p,
)
from time import monotonic_ns
from typing import Any

import numpy as np
import pytest
import torch
from native_experts import WAYS, bytes_at, packed, random_expert, random_layer

from moesaic.kernels import _native
from moesaic.kernels.instruction_sets import ISA_NUMBERS
from moesaic.kernels.native_executor import NativeExecutor
from moesaic.kernels.native_format import DTYPES
from moesaic.model_info.expert_shape import ExpertShape

pytestmark = pytest.mark.skipif(not WAYS, reason="this CPU has no instructions for the kernels")
SHAPE = ExpertShape(50, 30)


class CLayer(Structure):
    """`moesaic_layer` of moesaic_native.h."""

    _fields_ = (
        ("hidden", c_void_p),
        ("hidden_type", c_int32),
        ("hidden_stride", c_size_t),
        ("tokens", c_int32),
        ("top_k", c_int32),
        ("experts_total", c_int32),
        ("ids", c_void_p),
        ("weights", c_void_p),
        ("count", c_int32),
        ("experts", c_void_p),
        ("blocks", c_void_p),
        ("out", c_void_p),
        ("out_type", c_int32),
        ("add", c_int32),
        ("done_flag", c_void_p),
        ("done_value", c_uint32),
        ("done_ns", c_void_p),
        ("any_weights", c_int32),
    )


@pytest.fixture(scope="module")
def library() -> Any:
    functions: Any = ctypes.CDLL(str(_native.__file__))
    functions.moesaic_last_error.restype = c_char_p
    functions.moesaic_pool_create.restype = c_void_p
    functions.moesaic_pool_create.argtypes = (POINTER(c_int32), c_int32, c_double)
    functions.moesaic_pool_destroy.argtypes = (c_void_p,)
    functions.moesaic_pool_destroy.restype = None
    functions.moesaic_runner_create.restype = c_void_p
    functions.moesaic_runner_create.argtypes = (c_void_p, *[c_int32] * 6)
    functions.moesaic_runner_destroy.argtypes = (c_void_p,)
    functions.moesaic_runner_destroy.restype = None
    functions.moesaic_block_bytes.restype = c_size_t
    functions.moesaic_block_bytes.argtypes = (c_void_p,)
    functions.moesaic_pack.argtypes = (*[c_void_p] * 4, c_int32, c_void_p)
    functions.moesaic_submit.argtypes = (c_void_p, POINTER(CLayer))
    functions.moesaic_done.argtypes = (c_void_p,)
    functions.moesaic_wait.argtypes = (c_void_p, c_int32)
    return functions


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_bytes_and_the_same_results(library: Any, dtype: str, workers: int) -> None:
    kernel = WAYS[0].kernel(SHAPE, dtype)
    layer = random_layer(kernel, 20, experts=3, top_k=2)
    pool = library.moesaic_pool_create((c_int32 * workers)(*[-1] * workers), workers, 10.0)
    runner = library.moesaic_runner_create(
        pool, DTYPES[dtype], 50, 30, 0, ISA_NUMBERS[kernel.isa], kernel.tiles_from
    )
    assert runner
    library.moesaic_pool_destroy(pool)  # the runner keeps what it needs
    used = library.moesaic_block_bytes(runner)
    weights, block = random_expert(SHAPE), bytes_at(used)
    parts = (weights.gate.data_ptr(), weights.up.data_ptr(), weights.down.data_ptr())
    assert library.moesaic_pack(runner, *parts, 0, block.data_ptr()) == 0
    assert torch.equal(block, packed(kernel, weights)[:used])

    flag, ended = np.zeros(1, dtype=np.uint32), np.zeros(1, dtype=np.int64)
    out, listed = torch.full((20, 50), -1.0), np.arange(3, dtype=np.int32)
    call = CLayer(
        hidden=layer.hidden.data_ptr(),
        hidden_stride=50,
        tokens=20,
        top_k=2,
        experts_total=3,
        ids=layer.ids.data_ptr(),
        weights=layer.weights.data_ptr(),
        count=3,
        experts=listed.ctypes.data,
        blocks=layer.blocks.address,
        out=out.data_ptr(),
        done_flag=flag.ctypes.data,
        done_value=7,
        done_ns=ended.ctypes.data,
    )
    begun = monotonic_ns()
    assert library.moesaic_submit(runner, byref(call)) == 0
    assert library.moesaic_wait(runner, 1) == 0
    assert library.moesaic_done(runner) == 1
    assert flag[0] == 7, "raised by the worker that ended the layer"
    assert begun <= ended[0] <= monotonic_ns()
    library.moesaic_runner_destroy(runner)
    assert torch.equal(out, layer.computed(NativeExecutor(kernel, 1)))


def test_mistakes_come_back_as_codes_with_words(library: Any) -> None:
    pool = library.moesaic_pool_create(None, 0, 0.0)

    def runner(dtype: int, hidden: int) -> Any:
        return library.moesaic_runner_create(pool, dtype, hidden, 30, 0, 0, 4)

    def words() -> str:
        return str(library.moesaic_last_error().decode())

    assert not runner(9, 50)
    assert "no such precision" in words()
    assert not runner(0, 0)
    assert "0 x 30 cannot be computed" in words()
    assert not library.moesaic_pool_create(None, -3, 0.0)
    assert "a core for every worker" in words()
    int8 = runner(1, 50)
    weights = random_expert(SHAPE)
    weights.up[3, 3] = torch.nan
    parts = (weights.gate.data_ptr(), weights.up.data_ptr(), weights.down.data_ptr())
    block = bytes_at(library.moesaic_block_bytes(int8))
    assert library.moesaic_pack(int8, *parts, 0, block.data_ptr()) == 1
    assert words() == "the up matrix has infinities or nan"
    call = CLayer(tokens=1, top_k=1, experts_total=1)
    assert library.moesaic_submit(int8, byref(call)) == 1
    assert "missing" in words()
    library.moesaic_runner_destroy(int8)
    library.moesaic_pool_destroy(pool)


def test_best_isa_is_the_first_of_those_here(library: Any) -> None:
    assert library.moesaic_best_isa() == ISA_NUMBERS[WAYS[0].isa]


def test_the_functions_python_hands_on_are_these(library: Any) -> None:
    for name, address in _native.c_functions.items():
        assert ctypes.cast(getattr(library, name), c_void_p).value == address
