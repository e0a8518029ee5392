"""``--pallas-arithmetic``: how simulated GPUs add the products of tensor cores."""

from __future__ import annotations

import pytest

#: 1 and eight products of 2^-26, none of which a tensor core keeps beside it.
PRODUCTS = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import pytest
    from jax.experimental import pallas as pl


    def body(x, y, o):
        o[...] = jnp.dot(x[...], y[...], preferred_element_type=jnp.float32)


    def product(x, y):
        shape = jax.ShapeDtypeStruct((16, 16), jnp.float32)
        return pl.pallas_call(body, out_shape=shape)(x, y)


    X = np.zeros((16, 16), jnp.bfloat16)
    X[0, :9] = 1
    Y = np.zeros((16, 16), jnp.bfloat16)
    Y[:9, 0] = [*[2.0**-26] * 7, 1, 2.0**-26]


    {mark}
    def test_product(pallas_run):
        assert pallas_run(product, X, Y)[0, 0] == {wanted}
"""


@pytest.mark.parametrize(
    ("flags", "mark", "wanted"),
    [
        (("--pallas-backend=gpu-sim",), "", "1"),
        (("--pallas-backend=gpu-sim", "--pallas-arithmetic=chip"), "", "1"),
        (("--pallas-backend=gpu-sim", "--pallas-arithmetic=float32"), "", "1 + 2**-23"),
        (("--pallas-backend=gpu-sim:a100",), "", "1 + 2**-23"),
        (("--pallas-backend=gpu-sim:a100", "--pallas-arithmetic=chip"), "", "1"),
        (
            ("--pallas-backend=gpu-sim", "--pallas-arithmetic=chip"),
            "@pytest.mark.pallas(arithmetic='float32')",
            "1 + 2**-23",
        ),
    ],
)
def test_it_decides_what_is_computed(project, flags, mark, wanted):
    project.write(test_product=PRODUCTS.format(mark=mark, wanted=wanted))
    project.run(*flags).assert_outcomes(passed=1)


def test_a_failure_is_repeated_with_it(project):
    project.specs('name="off", kernel=add_off, backends=["gpu-sim"]')
    flags = ("--pallas-suite=specs", "--pallas-backend=gpu-sim", "--pallas-checks=forward")
    (record,) = project.records(*flags, "--pallas-sanitize=none", "--pallas-arithmetic=float32")
    assert "--pallas-arithmetic=float32" in record["replay"]
    (record,) = project.records(*flags, "--pallas-sanitize=none")
    assert "--pallas-arithmetic" not in record["replay"]
