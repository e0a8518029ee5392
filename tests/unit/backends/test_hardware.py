"""What the hardware backends do without hardware."""

import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from pytest_pallas.backends.hardware import prove
from pytest_pallas.backends.protocol import expected_warnings
from pytest_pallas.devices.absent import AbsentChip, present
from pytest_pallas.devices.gpus import attributes
from pytest_pallas.errors import NoPallasCallError


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
    from pytest_pallas.analysis import kernel_calls

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    x = jax.ShapeDtypeStruct((128,), jnp.float32)
    kernels = kernel_calls(jax.make_jaxpr(lambda x: pl.pallas_call(body, out_shape=x)(x))(x))
    with pytest.raises(NoPallasCallError, match="has none of mosaic_gpu, triton_kernel_call"):
        prove(kernels, "module { }", "gpu")
    prove(kernels, 'custom_call_target="triton_kernel_call"', "gpu")
