"""``checks.vmap``."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import NotApplicableError, check
from pytest_pallas.checks.transformations import vmap
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.judge.oracle import ExpectedCache


def counted(*, rows):
    def body(o_ref):
        o_ref[...] = jax.lax.broadcasted_iota(jnp.float32, o_ref.shape, 0)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((rows, 128), jnp.float32))()


def numbered(n, *, rows):
    return counted(rows=rows) + n


@pytest.mark.parametrize("ask", [vmap, vmap.program])
@pytest.mark.parametrize(("kernel", "args"), [(counted, ()), (numbered, (3,))])
def test_a_call_without_arrays_has_no_batch(context_of, ask, kernel, args):
    context = context_of(kernel, kernel, arguments=Arguments(args, options={"rows": 8}))
    with pytest.raises(NotApplicableError, match="no array argument"):
        ask(context)


def scaled(x, v):
    def body(x_ref, v_ref, o_ref):
        o_ref[...] = x_ref[...] * jax.lax.rsqrt(v_ref[...])

    return pl.pallas_call(body, out_shape=x)(x, v)


@jax.custom_batching.custom_vmap
def of_first_variance(x, v):
    return scaled(x, v)


@of_first_variance.def_vmap
def _(size, batched, x, v):
    x, v = (
        a if is_batched else jnp.broadcast_to(a, (size, *a.shape))
        for a, is_batched in zip((x, v), batched, strict=True)
    )
    return jnp.stack([scaled(row, v[0]) for row in x]), True


RNG = np.random.default_rng(0)
X = RNG.standard_normal((8, 128)).astype(np.float32)
VARIANCES = RNG.uniform(1, 2, (1, 128)).astype(np.float32)


@pytest.mark.parametrize(
    "variances",
    [VARIANCES, np.full_like(VARIANCES, 1.5), np.rint(4 * VARIANCES)],
    ids=["drawn", "equal", "integers"],
)
def test_each_row_is_in_the_range_of_the_argument(context_of, variances):
    def reference(x, v):
        return x * jax.lax.rsqrt(v)

    def finding(kernel):
        return vmap(context_of(kernel, reference, arguments=Arguments((X, variances))))

    assert finding(scaled).failed is None
    assert finding(of_first_variance).failed is not None


def whole(x, *, of):
    def body(x_ref, o_ref):
        o_ref[...] = of(x_ref[...])

    return pl.pallas_call(body, out_shape=x)(x)


def test_a_reference_that_is_nan_for_other_rows_gets_the_same(context_of):
    """Such as one of triangular matrices."""

    def triangular(x):
        below = jnp.tril(jnp.ones(x.shape, bool), -1)
        return jnp.where((jnp.where(below, x, 0) != 0).any(), jnp.nan, 2 * x)

    kernel = functools.partial(whole, of=lambda x: 2 * x)
    x = np.triu(X[:, :8]) + np.eye(8, dtype=np.float32) / 3
    assert vmap(context_of(kernel, triangular, arguments=Arguments((x,)))).failed is None


@pytest.mark.parametrize(
    "x",
    [
        np.linspace(0.5, 3, 128, dtype=np.float32).reshape(1, 128),
        np.array([[0.0, 1.0] * 64], np.float32),
        np.array([[-np.inf, 0.3, 1.7, np.inf]], np.float32),
    ],
    ids=["sorted", "mask", "infinities"],
)
def test_the_second_row_is_like_the_first(context_of, x):
    """In its range; sorted if that is; of zeros and ones if that is."""

    class Recording(ExpectedCache):
        def get(self, reference, args, *rest, **options):
            rows.extend(args)
            return super().get(reference, args, *rest, **options)

    rows = []
    kernel = functools.partial(whole, of=lambda a: a)
    context = context_of(kernel, lambda a: a, arguments=Arguments((x,)), cache=Recording())
    assert vmap(context).failed is None
    second = rows[-1]
    assert not np.array_equal(second, x)
    assert (second >= x.min()).all()
    assert (second <= x.max()).all()
    assert np.array_equal(np.isinf(second), np.isinf(x))
    if (np.diff(x) >= 0).all():
        assert (np.diff(second) >= 0).all()
    if set(x.flat) == {0, 1}:
        assert set(second.flat) == {0, 1}


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
