"""The example of docs/fuzzing.md."""

import pytest

KERNELS = {
    "softmax": """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def softmax(x):
    def body(x_ref, o_ref):
        x = x_ref[...].astype(jnp.float32)
        e = jnp.exp(x - %s)
        o_ref[...] = (e / e.sum(axis=-1, keepdims=True)).astype(o_ref.dtype)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
""",
    "softmax_spec": """
import jax
from mykernels.softmax import softmax
from pytest_pallas import KernelSpec, strategies as pst

SPEC = KernelSpec(name="softmax", kernel=softmax, reference=jax.nn.softmax,
                  inputs=pst.arrays("m n", max_dim=8, dtype="float32"))
""",
}


@pytest.mark.parametrize(
    ("subtracted", "outcome"),
    [("x.max(axis=-1, keepdims=True)", {"passed": 3}), ("0", {"failed": 1, "passed": 2})],
    ids=["right", "overflows"],
)
def test_a_spec_in_a_test_of_ones_own(blocks, pytester, subtracted, outcome):
    [(name, block)] = [each for each in blocks("docs/fuzzing.md") if each[0]]
    package = pytester.mkpydir("mykernels")
    (package / "softmax.py").write_text(KERNELS["softmax"] % subtracted)
    (package / "softmax_spec.py").write_text(KERNELS["softmax_spec"])
    (pytester.path / name).write_text(block)
    pytester.syspathinsert()
    result = pytester.runpytest("--pallas-backend=tpu-sim", "--pallas-max-examples=3")
    result.assert_outcomes(**outcome)
