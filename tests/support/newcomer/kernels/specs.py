"""A spec of each kernel: name, kernel, reference, inputs, and what cannot be guessed."""

import jax
import jax.numpy as jnp

from kernels.copies import doubled, shifted, shifted_reference, wrong_doubled
from kernels.products import matmul, wrong_matmul
from kernels.rows import (
    layer_norm,
    layer_norm_reference,
    softmax,
    wrong_layer_norm,
    wrong_softmax,
)
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst


def spec(kernel, reference, inputs, **more):
    return KernelSpec(
        name=kernel.__name__, kernel=kernel, reference=reference, inputs=inputs, **more
    )


ROWS = pst.arrays("m n")
EIGHTS = pst.arrays("m n", multiple_of={"m": 8, "n": 128})

SPECS = [
    spec(layer_norm, layer_norm_reference, ROWS),
    spec(wrong_layer_norm, layer_norm_reference, ROWS),
    spec(softmax, jax.nn.softmax, ROWS),
    spec(wrong_softmax, jax.nn.softmax, ROWS),
    spec(matmul, jnp.matmul, pst.arrays("m k, k n")),
    spec(wrong_matmul, jnp.matmul, pst.arrays("m k, k n")),
    spec(doubled, lambda x: x * 2, EIGHTS),
    spec(wrong_doubled, lambda x: x * 2, EIGHTS),
    spec(
        shifted,
        shifted_reference,
        lambda mesh: pst.arrays("m n", dims={"m": 8 * mesh.shape["x"], "n": 128}),
        meshes=({"x": 4},),
    ),
]
