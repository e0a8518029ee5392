"""``checks.vmap``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import NotApplicableError, check
from pytest_pallas.checks.vmap import program, vmap
from pytest_pallas.draw.arguments import Arguments


def counted(*, rows):
    def body(o_ref):
        o_ref[...] = jax.lax.broadcasted_iota(jnp.float32, o_ref.shape, 0)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((rows, 128), jnp.float32))()


def numbered(n, *, rows):
    return counted(rows=rows) + n


@pytest.mark.parametrize("ask", [vmap, program])
@pytest.mark.parametrize(("kernel", "args"), [(counted, ()), (numbered, (3,))])
def test_a_call_without_arrays_has_no_batch(context_of, ask, kernel, args):
    context = context_of(kernel, kernel, arguments=Arguments(args, options={"rows": 8}))
    with pytest.raises(NotApplicableError, match="no array argument"):
        ask(context)


def test_a_named_check_asks_about_operands_in_hbm():
    """Unnamed it leaves them out, because JAX compiles no batch of them for a TPU."""

    def body(x_hbm, o_hbm, done):
        pltpu.async_copy(x_hbm, o_hbm, done).wait()

    def copy(x):
        space = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(
            body,
            out_shape=x,
            in_specs=[space],
            out_specs=space,
            scratch_shapes=[pltpu.SemaphoreType.DMA],
        )(x)

    x = np.ones((8, 128), np.float32)
    check(copy, x, reference=lambda x: x, checks="vmap", backend="tpu-sim")
