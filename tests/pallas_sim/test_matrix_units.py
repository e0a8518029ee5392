"""Matrix units that a kernel drives by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import simulate
from pallas_sim.errors import SimulationError
from pallas_sim.machine import Machine
from pallas_sim.simulation import evaluate
from reference_kernels.matmul.conv2d import conv2d
from reference_kernels.matmul.matmul_explicit_mxu import matmul_explicit_mxu

TILE = 256


@pytest.fixture
def rng() -> np.random.Generator:
    """Of the same numbers in each run."""
    return np.random.default_rng(4)


def whole(rng: np.random.Generator, *shape: int, dtype: Any = jnp.bfloat16) -> Any:
    """Small integers."""
    return rng.integers(-3, 4, shape).astype(dtype)


def simulated(function: Any, *args: Any) -> Any:
    """What the simulator gives for a function of values."""
    return evaluate(jax.make_jaxpr(function)(*args), Machine(), args)


@pytest.mark.parametrize("target", ["v6e", "tpu7x"])
@pytest.mark.parametrize(("m", "k", "n"), [(16, 256, 256), (40, 700, 300), (100, 1300, 600)])
def test_a_product_by_hand(target: str, m: int, k: int, n: int, rng: np.random.Generator) -> None:
    """By queues of results (v6e) and by accumulators (tpu7x)."""
    x, y = whole(rng, m, k), whole(rng, k, n)
    found = simulate(matmul_explicit_mxu, x, y, target=target, block_m=32)
    wanted = (x.astype(np.float32) @ y.astype(np.float32)).astype(jnp.bfloat16)
    assert not found.findings
    assert (found.values == wanted).all()


def test_a_convolution_in_a_kernel(rng: np.random.Generator) -> None:
    """The one of the reference kernels."""
    x, w = whole(rng, 2, 9, 10, 16, dtype=np.float32), whole(rng, 3, 3, 16, 8, dtype=np.float32)
    found = simulate(conv2d, x, w, stride=1, padding="SAME")
    wanted = jax.lax.conv_general_dilated(
        x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert (found.values == np.asarray(wanted)).all()


def test_results_come_in_order(rng: np.random.Generator) -> None:
    """Of two units, by rows, whatever was popped at once; integers are summed in int32."""
    x, y, z = (whole(rng, *s, dtype=np.int8) for s in ((64, TILE), (TILE, TILE), (TILE, TILE)))

    def function(x: Any, y: Any, z: Any) -> Any:
        pltpu.matmul_push_rhs(y, 0, 0)
        pltpu.matmul_push_rhs(z, 1, 0, transpose=True)
        pltpu.matmul_push_rhs(z, 1, 1)
        pltpu.matmul_lhs_fifo(x[:32], 0, load_staged_rhs=0)
        pltpu.matmul_lhs_fifo(x[32:], 0)
        pltpu.matmul_lhs_fifo(x[:32], 0, load_staged_rhs=1)
        pltpu.matmul_lhs_fifo(x, 1, load_staged_rhs=1)
        pops = ((48, 0), (16, 0), (64, 1), (32, 0))
        return [pltpu.matmul_pop_fifo((rows, TILE), jnp.int32, unit) for rows, unit in pops]

    first, second, third, fourth = simulated(function, x, y, z)
    a, b, c = (each.astype(np.int32) for each in (x, y, z))
    assert (np.concatenate([first, second]) == a @ b).all()
    assert (third == a @ c).all()
    assert (fourth == a[:32] @ c.T).all()


def push_twice(x: Any, y: Any) -> None:
    pltpu.matmul_push_rhs(y, 1, 0)
    pltpu.matmul_push_rhs(y, 1, 0)


def load_twice(x: Any, y: Any) -> None:
    pltpu.matmul_push_rhs(y, 0, 0)
    pltpu.matmul_lhs_fifo(x, 0, load_staged_rhs=0)
    pltpu.matmul_lhs_fifo(x, 0, load_staged_rhs=0)


def load_of_another_unit(x: Any, y: Any) -> None:
    pltpu.matmul_push_rhs(y, 0, 1)
    pltpu.matmul_lhs_fifo(x, 0, load_staged_rhs=0)


def multiply_by_nothing(x: Any, y: Any) -> None:
    pltpu.matmul_push_rhs(y, 0, 0)
    pltpu.matmul_lhs_fifo(x, 0)


def pop_too_much(x: Any, y: Any) -> None:
    pltpu.matmul_push_rhs(y, 0, 0)
    pltpu.matmul_lhs_fifo(x, 0, load_staged_rhs=0)
    pltpu.matmul_pop_fifo((32, TILE), jnp.float32, 0)


def pop_another_dtype(x: Any, y: Any) -> None:
    pltpu.matmul_push_rhs(y, 0, 0)
    pltpu.matmul_lhs_fifo(x, 0, load_staged_rhs=0)
    pltpu.matmul_pop_fifo((16, TILE), jnp.int32, 0)


def multiply_another_dtype(x: Any, y: Any) -> None:
    pltpu.matmul_push_rhs(y, 0, 0)
    pltpu.matmul_lhs_fifo(x.astype(jnp.int8), 0, load_staged_rhs=0)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (push_twice, "pushed to staging register 1 of MXU 0, whose tile was not loaded"),
        (load_twice, "staging register 0 of MXU 0 is loaded, but it is empty"),
        (load_of_another_unit, "staging register 0 of MXU 0 is loaded, but it is empty"),
        (multiply_by_nothing, "MXU 0 multiplies, but no tile was loaded"),
        (pop_too_much, "32 rows are popped from the results of MXU 0, which has 16"),
        (pop_another_dtype, r"int32\[16, 256\] is popped from MXU 0, whose results are float32"),
        (multiply_another_dtype, "MXU 0 multiplies int8.* with a tile bfloat16"),
    ],
)
def test_what_a_unit_cannot_do(wrong: Any, message: str, rng: np.random.Generator) -> None:
    """Is an error that says which unit, and where."""
    with pytest.raises(SimulationError, match=f"(?s){message}.*test_matrix_units.py"):
        simulated(wrong, whole(rng, 16, TILE), whole(rng, TILE, TILE))


def test_parts_of_accumulators(rng: np.random.Generator) -> None:
    """They begin with zeros, add, and are zero once they are popped."""
    x, y = whole(rng, 64, TILE), whole(rng, TILE, TILE)

    def kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        def body(acc: Any) -> None:
            pltpu.matmul_push_rhs(y_ref[...], 0, 0)
            pltpu.matmul_acc_lhs(acc.at[:32], x_ref[:32], load_staged_rhs=0)
            pltpu.matmul_acc_lhs(acc, x_ref[...])
            o_ref[:32] = pltpu.matmul_pop(acc.at[pl.ds(0, 32)])
            pltpu.matmul_acc_lhs(acc.at[:32], x_ref[:32])
            o_ref[32:] = pltpu.matmul_pop(acc.at[32:])
            o_ref[:32] += pltpu.matmul_pop(acc.at[:32])
            o_ref[:32] += pltpu.matmul_pop(acc.at[:32])

        pl.run_scoped(body, pltpu.ACC(mxu_id=0)((64, TILE), jnp.float32))

    def call(x: Any, y: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct((64, TILE), jnp.float32))(x, y)

    found = simulate(call, x, y, target="tpu7x").values
    wanted = x.astype(np.float32) @ y.astype(np.float32)
    assert (found[32:] == wanted[32:]).all()
    assert (found[:32] == 3 * wanted[:32]).all()
