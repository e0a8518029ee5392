"""``checks.vmap``."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from pytest_pallas import NotApplicableError
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
