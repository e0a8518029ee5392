"""JAX evaluates decompositions, systems of equations and Fourier transforms around kernels."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from pallas_sim import simulate

FUNCTIONS = {
    "cholesky": lambda a: jnp.linalg.cholesky(a @ a.T + 4 * jnp.eye(len(a), dtype=a.dtype)),
    "eigh": lambda a: jnp.linalg.eigh(a + a.T),
    "fft": lambda a: jnp.fft.fft(a),
    "geqrf": jnp.linalg.qr,
    "lu": lambda a: jnp.linalg.solve(a, a[:, :1]),
    "svd": jnp.linalg.svd,
    "triangular_solve": lambda a: lax.linalg.triangular_solve(jnp.tril(a), a, lower=True),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_jax_evaluates_it(name):
    x = np.random.default_rng(0).standard_normal((5, 5)).astype(np.float32) + np.eye(5, dtype="f")
    simulated = simulate(FUNCTIONS[name], x)
    assert simulated.fallbacks[name] == 1
    leaves = zip(*map(jax.tree.leaves, (simulated.values, FUNCTIONS[name](x))), strict=True)
    for actual, wanted in leaves:
        np.testing.assert_allclose(actual, wanted, atol=1e-5)
