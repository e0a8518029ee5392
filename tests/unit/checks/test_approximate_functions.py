"""Functions that a kernel asks to be approximate: what they cost is allowed, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

import pytest_pallas
from pytest_pallas import MismatchError
from pytest_pallas.judge.arithmetic import arithmetic_of

Function = Callable[[Any], Any]


def kernel_of(function: Function, *, approx: bool = True, factor: float = 1.0) -> Function:
    """A kernel that applies a function, whose results are off by a factor."""

    def body(x: Any, o: Any) -> None:
        o[...] = function(x[...]) * jnp.float32(factor)

    options = plgpu.CompilerParams(approx_math=approx)
    return lambda x: plgpu.kernel(body, out_type=x, compiler_params=options)(x)


def check(function: Function, x: Any, *, reference: Function | None = None, **rest: Any) -> None:
    """Compare with the same function, on a simulated H200."""
    arithmetic = rest.pop("arithmetic", "")
    pytest_pallas.check(
        kernel_of(function, **rest),
        x,
        reference=reference or function,
        backend="gpu-sim:h200",
        arithmetic=arithmetic,
    )


def softmax(x: Any) -> Any:
    """Without the largest subtracted, so that approximate exponentials are off by 50 ulps."""
    exponentials = jnp.exp(x)
    return exponentials / jnp.sum(exponentials)


def drawn(low: float, high: float) -> Any:
    """1,024 numbers."""
    return np.random.default_rng(0).uniform(low, high, 1024).astype(np.float32)


CASES: dict[str, tuple[Function, Any]] = {
    "softmax": (softmax, drawn(49, 51)),
    "exp": (jnp.exp, drawn(-80, 80)),
    "tanh": (jnp.tanh, drawn(-3, 3)),
    "log": (jnp.log, drawn(0.5, 2)),
    "sin": (jnp.sin, drawn(-50, 50)),
    "silu": (jax.nn.silu, drawn(-60, 5)),
    "gelu": (jax.nn.gelu, drawn(-5, 5)),
    "a sum of one sign": (lambda x: x + jnp.sum(jnp.tanh(x)), drawn(0.5, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_its_own_error_passes_and_a_mistake_fails(name: str) -> None:
    function, x = CASES[name]
    check(function, x)
    with pytest.raises(MismatchError, match="is wrong"):
        check(function, x, factor=1.001)


def test_only_a_kernel_that_asks_for_it_is_allowed_it() -> None:
    """``tanh.approx`` is off by up to 128 ulps."""
    off = 1 + 100 * 2.0**-23
    check(jnp.tanh, CASES["tanh"][1], factor=off)
    with pytest.raises(MismatchError, match="is wrong"):
        check(jnp.tanh, CASES["tanh"][1], factor=off, approx=False)
    with pytest.raises(MismatchError, match="is wrong"):
        check(jnp.tanh, CASES["tanh"][1], factor=off, arithmetic="float32")


def test_another_function_of_the_kernel_is_not_approximate() -> None:
    """A square root has the same bits with ``approx_math``."""
    with pytest.raises(MismatchError, match="is wrong"):
        check(jnp.sqrt, drawn(1, 4), factor=1 + 2.0**-17)


def test_a_kernel_may_compose_the_function_of_the_reference() -> None:
    def of_powers(x: Any) -> Any:
        return 1 / (1 + jnp.exp2(x * jnp.float32(-1.442695)))

    check(of_powers, drawn(-60, 5), reference=jax.nn.sigmoid)


def test_exact_where_no_error_changes_a_bit() -> None:
    """Divisions by powers of two are exact, and a third is not."""
    x = np.arange(1024, dtype=np.float32) % 17

    def check_exactly(divisor: float, factor: float) -> None:
        def divide(x: Any) -> Any:
            return x / jnp.full_like(x, divisor)

        pytest_pallas.check(
            kernel_of(divide, factor=factor),
            x,
            reference=divide,
            backend="gpu-sim:h200",
            exact=True,
        )

    check_exactly(4, 1.0)
    check_exactly(3, 1.0)
    with pytest.raises(MismatchError, match="exact"):
        check_exactly(4, 1 + 2.0**-23)


def test_what_a_kernel_computes() -> None:
    def body(x: Any, o: Any) -> None:
        o[...] = jax.nn.silu(x[...]) + jnp.exp(x[...].astype(jnp.bfloat16)).astype(jnp.float32)

    x = np.ones(128, np.float32)
    triton = jax.make_jaxpr(pl.pallas_call(body, out_shape=x))(x)
    arithmetic = arithmetic_of(triton, {})
    assert arithmetic.functions == {"exp", "exp2", "logistic"}
    assert arithmetic.approximate == set()
    mosaic = jax.make_jaxpr(kernel_of(jnp.log))(x)
    assert arithmetic_of(mosaic, {}).approximate == {"log", "log2"}
