"""What the product by hand refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractDevice, AbstractMesh
from pallas_test_support.operands import refuses

from reference_kernels.matmul import matmul_explicit_mxu


def zeros(*shape: int) -> jax.Array:
    return jnp.zeros(shape, jnp.bfloat16)


def test_what_it_takes() -> None:
    refuses(lambda: matmul_explicit_mxu(zeros(3), zeros(3, 4)), "x must have the shape (m, k)")
    refuses(lambda: matmul_explicit_mxu(zeros(2, 3), zeros(4, 5)), "y must have the same k as x, 3")
    x = jnp.zeros((2, 3))
    refuses(lambda: matmul_explicit_mxu(x, x.T), "x must be bfloat16", "float32")


@pytest.mark.parametrize("name", ["block_m", "tiles_k"])
def test_sizes(name: str) -> None:
    refuses(
        lambda: matmul_explicit_mxu(zeros(2, 3), zeros(3, 4), **{name: 0}),
        f"{name} must be a positive integer, but it is 0",
    )


@pytest.mark.parametrize(
    ("kind", "version"), [("TPU v4", "v4"), ("TPU v5 lite", "v5e"), ("TPU v5", "v5p")]
)
def test_older_chips(kind: str, version: str) -> None:
    device = AbstractDevice(device_kind=kind, num_cores=1, platform="tpu")
    with jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device)):
        refuses(
            lambda: matmul_explicit_mxu(zeros(2, 3), zeros(3, 4)),
            "the chip must be a v6e or later",
            version,
        )
