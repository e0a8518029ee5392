"""Softmax over the last axis on a GPU: ``o[i, j] = exp(x[i, j] - max_i) / sum_j exp(...)``.

Shapes: ``x`` and ``o`` are ``(..., n)``, ``n`` up to 16384. Dtypes: float32, bfloat16 or float16;
computed in float32, rounded once.

The work is nothing beside the traffic: at best, the kernel takes as long as copying ``x``. So it
must read each element once and write each once, with wide accesses, and keep enough of them in
flight. A row therefore stays in registers between its three passes, maximum, sum and quotient.
``_rows`` has the layouts: which says that the row is spread over a warp or a warpgroup, and with
that how ``jnp.max`` and ``jnp.sum`` become shuffles.

An ``n`` that is not a multiple of 128 is padded with ``-inf``, which costs another copy.

Backward, with ``o`` computed again: ``dx = o (do - sum_j do o)``, by rows as well.

``overlap=True`` uses programmatic dependent launch (PTX ISA, griddepcontrol): in a stream of short
kernels, the blocks of the next one are on the SMs already when the last ones of this one end.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Permuted
from pytest_pallas.spec import KernelSpec
from reference_kernels import _require
from reference_kernels.mosaic_gpu import _rows
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.reductions.softmax import reference


def _softmax_of(x: jax.Array) -> jax.Array:
    top = jnp.max(x, axis=1)
    # Of a row that is all -inf: -inf - -inf is NaN.
    weights = jnp.exp(x - _rows.along(jnp.where(top == -jnp.inf, 0.0, top), x.shape))
    total = jnp.sum(weights, axis=1)
    return weights * _rows.along(1.0 / jnp.where(total == 0.0, 1.0, total), x.shape)


def _gradient_of(x: jax.Array, do: jax.Array) -> jax.Array:
    o = _softmax_of(x)
    return o * (do - _rows.along(jnp.sum(do * o, axis=1), x.shape))


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _softmax(x: jax.Array, block_rows: int | None, overlap: bool) -> jax.Array:
    return _rows.over_rows(
        _softmax_of, (x,), block_rows=block_rows, overlap=overlap, name="row_softmax"
    )


def _forward(x: jax.Array, block_rows: int | None, overlap: bool) -> tuple[jax.Array, jax.Array]:
    return _softmax(x, block_rows, overlap), x


def _backward(
    block_rows: int | None, overlap: bool, x: jax.Array, do: jax.Array
) -> tuple[jax.Array]:
    return (
        _rows.over_rows(
            _gradient_of,
            (x, do),
            block_rows=block_rows,
            overlap=overlap,
            name="row_softmax_backward",
        ),
    )


_softmax.defvjp(_forward, _backward)


def row_softmax(x: jax.Array, *, block_rows: int | None = None, overlap: bool = False) -> jax.Array:
    """Softmax over the last axis. It can be differentiated.

    Args:
      x: ``(..., n)`` with at least one axis, float32, bfloat16 or float16. ``n`` is at most 16384;
        multiples of 1024 make full use of the memory. Entries may be ``-inf``.
      block_rows: rows of a block; by default as many as make 64 elements a thread.
      overlap: launch the kernel by programmatic dependent launch.

    Returns:
      The shape and dtype of ``x``. Rows that are all ``-inf`` are all zeros.

    Raises:
      ValueError: ``x`` is a scalar, empty, of another dtype or too long, or ``block_rows`` is not
        positive.
    """
    m, n = _rows.check(x)
    if block_rows is not None:
        _require.positive(block_rows=block_rows)
    o = _softmax(_rows.whole(x.reshape(m, n), -jnp.inf), block_rows, overlap)
    return o[:, :n].reshape(x.shape)


def _with_rows_of_each_kind(drawn: pst.Drawn) -> pst.Drawn:
    """Of three rows, one is all ``-inf``, one 64 times as large, and one half ``-inf``.

    exp overflows at 89: without the maximum, the second has no softmax.
    """
    x = drawn[0].copy()
    x[::3] = -jnp.inf
    x[1::3] *= 64
    x[2::3, ::2] = -jnp.inf
    return pst.Drawn((x,), {**drawn.recipe, "rows": "of each kind"}, declared=drawn.declared)


_DTYPE = pst.floats("bfloat16", "float32", "float16")
_ANY = pst.arguments(
    pst.arrays("m n", dtype=_DTYPE, dims={"m": [1, 8, 11], "n": [40, 256, 2176]}),
    tuning={"block_rows": st.sampled_from([4, 6])},
)

#: A block of 8 rows, a group of 4 and 3 that are left: there are rows of each kind in all of them.
_MASKED = pst.arguments(
    pst.arrays("m n", dtype=_DTYPE, dims={"m": 15, "n": [40, 256]}).map(_with_rows_of_each_kind),
    tuning={"block_rows": 8},
)

SPEC = KernelSpec(
    name="row_softmax",
    kernel={"gpu": row_softmax},
    backends=("gpu-interpret", *TMA),
    reference=reference,
    inputs=st.one_of(_ANY, _MASKED),
    differentiable=(0,),
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1}, output=1)),
    typical=(
        pst.shaped("m n", dtype="bfloat16", dims={"m": 8192, "n": 8192}),
        pst.shaped("m n", dtype="float32", dims={"m": 8192, "n": 1024}),
    ),
)

SPEC_OVERLAP = dataclasses.replace(
    SPEC,
    name="row_softmax_overlap",
    kernel={"gpu": functools.partial(row_softmax, overlap=True)},
    checks=("forward", "gradient"),
    backends=tuple(each for each in SPEC.backends if each != "gpu-interpret"),  # griddepcontrol
)
