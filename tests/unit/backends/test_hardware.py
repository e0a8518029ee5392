"""What the hardware backends do without hardware."""

import dataclasses
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_sim.chips import attributes
from pallas_sim.tracing import AbsentChip, present
from pytest_pallas import NoPallasCallError
from pytest_pallas.backends import hardware, tracing
from pytest_pallas.backends.hardware import compile_proven, prove
from pytest_pallas.backends.protocol import Call, expected_warnings
from pytest_pallas.backends.simulators import gpu_sim
from pytest_pallas.checks.transformations import Vjp


def _lowered():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    x = jax.ShapeDtypeStruct((128,), jnp.float32)
    traced = jax.jit(lambda x: pl.pallas_call(body, out_shape=x)(x)).trace(x)
    with present(AbsentChip("NVIDIA H100 80GB HBM3", "gpu", attributes("h100"))):
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def test_the_deprecation_of_triton_is_no_error_of_the_kernel():
    with expected_warnings():
        prove([], _lowered(), "gpu")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        _lowered()
    if jax.__version_info__ >= (0, 12):
        assert any("Triton" in str(warning.message) for warning in heard)


def test_a_program_without_the_kernel_is_no_proof():
    from pytest_pallas.grid.kernel_calls import kernel_calls

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    x = jax.ShapeDtypeStruct((128,), jnp.float32)
    kernels = kernel_calls(jax.make_jaxpr(lambda x: pl.pallas_call(body, out_shape=x)(x))(x))
    with pytest.raises(NoPallasCallError, match="has none of mosaic_gpu, triton_kernel_call"):
        prove(kernels, "module { }", "gpu")
    prove(kernels, 'custom_call_target="triton_kernel_call"', "gpu")


def body(x_ref, o_ref):
    o_ref[...] = x_ref[...] * x_ref[...]


def square(x):
    return pl.pallas_call(body, out_shape=x)(x)


@jax.custom_vjp
def square_by_xla(x):
    """A kernel whose gradient is jnp, and needs no output of it."""
    return square(x)


square_by_xla.defvjp(lambda x: (square(x), x), lambda x, ct: (2 * x * ct,))

X = np.ones((128,), np.float32)


@dataclasses.dataclass
class LoweredForGpu:
    """A traced call that lowers for an H100, and of which nothing is executed."""

    traced: Any

    @property
    def jaxpr(self):
        return self.traced.jaxpr

    def lower(self):
        return self

    def compile(self):
        return self

    def as_text(self):
        with present(AbsentChip("NVIDIA H100 80GB HBM3", "gpu", attributes("h100"))):
            return self.traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.fixture
def compiling(monkeypatch):
    """``compiling(function, *args)``: what ``compile_proven`` makes of a call."""
    jitted = tracing.jitted

    class Jitted:
        def __init__(self, static):
            self.static = static

        def trace(self, arrays):
            return LoweredForGpu(jitted(self.static).trace(arrays))

    monkeypatch.setattr(hardware, "jitted", Jitted)

    def compile_call(function, *args):
        static, arrays = tracing.split(Call(function=function, args=args))
        with expected_warnings():
            return compile_proven(static, arrays, "gpu").as_text()

    return compile_call


def test_a_kernel_that_no_output_needs_is_not_missed(compiling):
    compiling(Vjp(square_by_xla, (0,)), None, X)


def test_a_kernel_that_an_output_needs_is_found(compiling):
    assert "triton" in compiling(square, X)


def test_a_kernel_that_does_not_reach_the_executable_is_missed(compiling, monkeypatch):
    monkeypatch.setattr(LoweredForGpu, "as_text", lambda self: "module { }")
    with pytest.raises(NoPallasCallError, match="although body was traced"):
        compiling(square, X)


def test_a_function_whose_kernel_is_dead_code_has_none():
    def forgotten(x):
        square(x)
        return x + 1

    call = Call(function=forgotten, args=(X,))
    error = gpu_sim().run(call).error
    assert isinstance(error, NoPallasCallError)
    assert "no output of forgotten depends on its Pallas kernel (body)" in str(error)
