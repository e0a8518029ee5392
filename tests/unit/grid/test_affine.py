"""Index maps as affine functions of the grid point."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas.grid.model import Affine, affine_outputs
from pytest_pallas.grid.scalars import mapped

GRID = (3, 4)


def traced(index_map):
    return jax.make_jaxpr(index_map)(*(np.int32(0) for _ in GRID))


@pytest.mark.parametrize(
    ("index_map", "affine"),
    [
        (lambda i, j: (i, j), [Affine(0, (1, 0)), Affine(0, (0, 1))]),
        (lambda i, j: (4 * i + j, 0), [Affine(0, (4, 1)), Affine(0, (0, 0))]),
        (lambda i, j: (3 - i, j * 2 - 1), [Affine(3, (-1, 0)), Affine(-1, (0, 2))]),
        (lambda i, j: (i * j, jnp.minimum(i, 1)), [None, None]),
        (jax.jit(lambda i, j: (-(i - j), i // 2)), [Affine(0, (-1, 1)), None]),
    ],
)
def test_outputs(index_map, affine):
    assert affine_outputs(traced(index_map), 2) == affine
    points = np.indices(GRID).reshape(2, -1).astype(np.int32)
    values = mapped(traced(index_map), points, (), ())
    for form, value in zip(affine, values, strict=True):
        if form is not None:
            assert value.tolist() == (form.constant + np.array(form.coefficients) @ points).tolist()
            assert form.span(GRID) == (value.min(), value.max())


@pytest.mark.parametrize(
    "index_map",
    [
        lambda i, j: (i // 2, j % 3),
        lambda i, j: ((i - 5) // 2, (i - 5) % 3),
        lambda i, j: (jax.lax.div(i - 5, 2), jax.lax.rem(i - 5, 3)),
        lambda i, j: (jnp.where(i > j, i, -j), jnp.clip(i + j, 1, 3)),
        lambda i, j: (i ^ j, (i & 1) | (j << 2)),
        lambda i, j: (jnp.sign(i - 1), jnp.abs(i - j) ** 2),
        lambda i, j: (jax.lax.cond(i > 1, lambda: i, lambda: j), 0),
        lambda i, j: (jax.lax.fori_loop(0, i, lambda k, s: s + k, j), 0),
        lambda i, j: (jnp.sqrt(i * 4.0).astype(jnp.int32), jnp.bitwise_not(i)),
    ],
)
def test_values_are_those_of_jax(index_map):
    points = np.indices(GRID).reshape(2, -1).astype(np.int32)
    values = mapped(traced(index_map), points, (), ())
    wanted = jax.vmap(index_map)(*points)
    for value, want in zip(values, wanted, strict=True):
        assert value.tolist() == np.broadcast_to(want, points.shape[1]).tolist()
