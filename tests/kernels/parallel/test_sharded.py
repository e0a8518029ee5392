"""Single-device kernels on several devices: misuses, and what is sent."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from pallas_test_support.operands import f32, i32, refuses

from pytest_pallas.grid.kernel_calls import kernel_calls
from reference_kernels.parallel import sharded_attention, softmax_by_columns, softmax_by_rows
from reference_kernels.parallel.sharded_attention import reference
from reference_kernels.parallel.sharded_softmax import reference as softmax_reference

MESH = AbstractMesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def trace(function: Any, *args: Any, **settings: Any) -> Any:
    return jax.make_jaxpr(functools.partial(function, mesh=MESH, **settings))(*args)


@pytest.mark.parametrize("softmax", [softmax_by_rows, softmax_by_columns])
def test_softmax(softmax: Any) -> None:
    call = functools.partial(trace, softmax, axis_name="y")
    refuses(lambda: call(f32(4)), "x must have the shape (m, n)", "(4,)")
    refuses(lambda: call(f32(4, 0)), "x must not be empty", "(4, 0)")
    refuses(lambda: call(i32(4, 4)), "x must have a floating dtype", "int32")
    refuses(lambda: call(f32(4, 4), block_rows=0), "block_rows must be a positive integer")
    refuses(lambda: call(f32(4, 4), axis_name="z"), "mesh must have an axis 'z'", "('x', 'y')")


def test_softmax_that_cannot_be_divided() -> None:
    wish = "that is divisible by the 4 devices along 'y'"
    rows, columns = f32(3, 4), f32(4, 3)
    refuses(lambda: trace(softmax_by_rows, rows, axis_name="y"), "x must", "size m", wish, "is 3")
    refuses(lambda: trace(softmax_by_columns, columns, axis_name="y"), "size n", wish, "is 3")


def test_attention() -> None:
    call = functools.partial(trace, sharded_attention)
    x, three = f32(2, 4, 8, 5), f32(2, 3, 8, 5)
    refuses(lambda: call(x, x[0], x), "k must have the shape (b, g, kv_len, d)", "(4, 8, 5)")
    refuses(lambda: call(x, x, x[:1]), "v must have the same b as q, 2", "is 1")
    refuses(lambda: call(x, three, three), "k must have a number of heads g that divides", "is 3")
    refuses(
        lambda: call(x, x, x, batch_axis="x", head_axis="x"), "must differ", "'batch_axis': 'x'"
    )
    refuses(lambda: call(x, x, x, head_axis="z"), "mesh must have an axis 'z'")
    refuses(lambda: call(x, x, x, block_q=0), "block_q must be a positive integer")


def test_attention_that_cannot_be_divided() -> None:
    call = functools.partial(trace, sharded_attention)
    x, two, long = f32(2, 4, 8, 5), f32(2, 2, 8, 5), f32(2, 4, 9, 5)
    refuses(lambda: call(x, x, x, batch_axis="y"), "q must have a size b", "by the 4", "is 2")
    refuses(lambda: call(x, two, two, head_axis="y"), "k must have a size g", "by the 4", "is 2")
    refuses(lambda: call(x, long, long, sequence_axis="x"), "k must have a size kv_len", "is 9")


def sent(jaxpr: Any) -> set[str]:
    """The collectives of a program."""
    names = ("psum", "pmax", "all_gather", "ppermute", "all_to_all", "psum_invariant")
    return {name for name in names if f"{name}[" in str(jaxpr)}


def test_what_is_divided_by_rows_batch_or_heads_sends_nothing() -> None:
    x, qkv = f32(8, 8), 3 * (f32(2, 4, 8, 5),)
    assert not sent(trace(softmax_by_rows, x, axis_name="y"))
    assert not sent(trace(sharded_attention, *qkv, batch_axis="x", head_axis="y", causal=True))
    assert sent(trace(softmax_by_columns, x, axis_name="y")) == {"psum", "pmax"}
    assert sent(trace(sharded_attention, *qkv, sequence_axis="y", causal=True)) == {"all_gather"}


def test_a_device_reads_only_the_keys_that_it_sees() -> None:
    x = f32(1, 1, 8, 5)
    jaxpr = trace(sharded_attention, x, x, x, sequence_axis="y", causal=True)
    lengths = [call.eqn.invars[1].aval.shape[1] for call in kernel_calls(jaxpr)]
    assert sorted(lengths) == [2, 4, 6, 8]


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize("softmax", [softmax_by_rows, softmax_by_columns])
def test_rows_without_a_weight_are_zero(pallas_run: Any, pallas_mesh: Any, softmax: Any) -> None:
    x = np.full((2, 6), -np.inf, np.float32)
    x[1, 3:] = 1.0  # all of what the second device has, by columns
    out = pallas_run(softmax, x, mesh=pallas_mesh(x=2), axis_name="x")
    np.testing.assert_array_equal(out[0], np.zeros(6))
    np.testing.assert_allclose(out[1], [0, 0, 0, 1 / 3, 1 / 3, 1 / 3], rtol=1e-6)


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize("devices", [1, 4, 8])
@pytest.mark.parametrize("axis", ["batch_axis", "head_axis", "sequence_axis"])
def test_attention_over_any_number_of_devices(
    pallas_check: Any, pallas_mesh: Any, devices: int, axis: str
) -> None:
    sizes = {"batch_axis": (devices, 2, 5), "head_axis": (1, 2 * devices, 5)}
    b, h, n = sizes.get(axis, (1, 2, 3 * devices))
    rng = np.random.default_rng(devices)
    q, k, v = rng.standard_normal((3, b, h, n, 8), dtype=np.float32)
    options = {"mesh": pallas_mesh(x=devices), axis: "x", "causal": True}
    pallas_check(sharded_attention, q, k, v, reference=reference, options=options)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_a_device_whose_queries_see_no_key(pallas_check: Any, pallas_mesh: Any) -> None:
    q, k = np.ones((1, 1, 8, 4), np.float32), np.ones((1, 1, 4, 4), np.float32)
    options = {"mesh": pallas_mesh(x=2), "sequence_axis": "x", "causal": True}
    out = pallas_check(sharded_attention, q, k, k, reference=reference, options=options)
    np.testing.assert_array_equal(out[0, 0, :4], np.zeros((4, 4)))


@pytest.mark.pallas(backends=["tpu-sim"])
@pytest.mark.parametrize("devices", [1, 4, 8])
@pytest.mark.parametrize("softmax", [softmax_by_rows, softmax_by_columns])
def test_softmax_over_any_number_of_devices(
    pallas_check: Any, pallas_mesh: Any, devices: int, softmax: Any
) -> None:
    x = np.random.default_rng(devices).standard_normal((8, 24), dtype=np.float32)
    options = {"mesh": pallas_mesh(x=devices), "axis_name": "x"}
    pallas_check(softmax, x, reference=softmax_reference, options=options)
