"""``simulator.inspection.magnitudes``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pytest_pallas.judge.oracle import expected

X = np.full((4, 4), 2.0**-40, np.float32)


@pytest.mark.parametrize(
    ("reference", "least"),
    [
        (lambda x: x + 1, 1.0),
        (lambda x: x * x, 2.0**-80),
        (lambda x: x @ x + 1, 2.0**-80),
        (lambda x: jnp.where(x > 1, x, 0) + 0, np.inf),
        (lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y * x, x) + 1, 2.0**-160),
        (lambda x: np.asarray(x) + 1, 0.0),
    ],
    ids=["no inputs", "products", "terms", "zeros", "loops", "numpy"],
)
def test_the_least_magnitude_that_a_reference_computes_with(reference, least):
    assert expected(reference, (X,), {}).least() == pytest.approx(least)
