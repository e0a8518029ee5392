"""Functions whose kernels only copy, while jnp does the work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import analyze

X = np.ones((16, 128), np.float32)
BLOCK = pl.BlockSpec((8, 128), lambda i: (i, 0))


def kernel(x, body, **more):
    return pl.pallas_call(body, grid=(2,), in_specs=[BLOCK], out_specs=BLOCK, out_shape=x, **more)(
        x
    )


def copied(x):
    return kernel(x, lambda x_ref, o_ref: o_ref.set(x_ref[...]))


def moved(x):
    """A copy in another dtype and by way of a buffer, and no numbers are others."""

    def body(x_ref, o_ref, buffer):
        buffer[...] = x_ref[...].astype(jnp.bfloat16)
        rows = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0) + 8 * pl.program_id(0)
        o_ref[...] = jnp.where(rows < 16, buffer[...].astype(jnp.float32) * 1 + 0, 0)

    return kernel(x, body, scratch_shapes=[pltpu.VMEM((8, 128), jnp.bfloat16)])


def doubled(x):
    return kernel(x, lambda x_ref, o_ref: o_ref.set(2 * x_ref[...]))


def work(x):
    return jnp.exp(x) @ jnp.ones((128, 128))


def findings(function):
    return [one for one in analyze(function, X).findings if one.kind == "copies"]


@pytest.mark.parametrize("copy", [copied, moved])
@pytest.mark.parametrize("jit", [False, True])
def test_the_work_is_outside(copy, jit):
    whole = jax.jit(lambda x: copy(work(x))) if jit else lambda x: copy(work(x))
    [finding] = findings(whole)
    assert finding.severity == "warning"
    assert f"computes dot_general, exp ({__file__}:" in finding.message
    assert "only copies" in analyze(whole, X).report()
    assert findings(lambda x: jnp.tanh(copy(x)))


def test_who_computes_in_a_kernel_may_compute_outside():
    assert not findings(lambda x: doubled(work(x)))
    assert not findings(lambda x: copied(doubled(work(x))))


@pytest.mark.parametrize(
    "function",
    [
        copied,
        moved,
        lambda x: copied(x).T.reshape(-1),
        lambda x: copied(jnp.pad(x[1:], ((0, 1), (0, 0)))),
        lambda x: copied(x)[jnp.arange(3) + 1],
    ],
)
def test_a_kernel_that_is_to_copy_is_right(function):
    assert not findings(function)
