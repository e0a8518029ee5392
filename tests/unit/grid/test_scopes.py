"""Kernels at any depth, with the values that their index maps read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from pallas_test_support.grid_kernels import F32, Shape, copy, kinds, only, rows

from pytest_pallas import NoPallasCallError
from pytest_pallas.backends.analyzing import analyze

X = Shape((64, 128), F32)


def floor_grid(x):
    return rows(copy, x.shape, grid=(x.shape[0] // 8,))(x)


def in_vmap(x):
    return jax.vmap(floor_grid)(jnp.stack([x, x]))


def in_scan(x):
    return jax.lax.scan(lambda c, _: (floor_grid(c), None), x, None, length=3)[0]


def in_cond(x):
    return jax.lax.cond(x[0, 0] > 0, floor_grid, lambda x: x, x)


def in_while(x):
    return jax.lax.while_loop(lambda x: x[0, 0] > 0, floor_grid, x)


@jax.custom_vjp
def with_vjp(x):
    return floor_grid(x)


with_vjp.defvjp(lambda x: (floor_grid(x), x), lambda x, do: (floor_grid(do),))


@jax.custom_jvp
def with_jvp(x):
    return floor_grid(x)


with_jvp.defjvp(lambda primals, tangents: (with_jvp(*primals), tangents[0]))


def gradient(x):
    return jax.grad(lambda x: with_vjp(x).sum())(x)


@pytest.mark.parametrize(
    "function",
    [
        jax.jit(floor_grid), in_vmap, jax.checkpoint(floor_grid), in_scan, in_cond,
        in_while, with_vjp, with_jvp, gradient,
    ],
    ids=["jit", "vmap", "remat", "scan", "cond", "while", "vjp", "jvp", "gradient"],
)  # fmt: skip
def test_found_at_any_depth(function):
    found = analyze(function, Shape((60, 128), F32)).findings
    assert {finding.kind for finding in found if finding.operand == "o_ref"} >= {"never-written"}


def test_found_in_shard_map():
    mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.shard_map(
        floor_grid, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False
    )
    assert "[56:60, 0:128]" in only(sharded, Shape((120, 128), F32)).message


def gathered(order, x, *, count=None):
    """Blocks of rows of ``x`` in the order that ``order`` says."""

    def body(order_ref, x_ref, o_ref):
        o_ref[...] = x_ref[...]

    spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=1,
        grid=(order.shape[0] if count is None else count,),
        in_specs=[pl.BlockSpec((8, 128), lambda i, order: (order[i], 0))],
        out_specs=pl.BlockSpec((8, 128), lambda i, order: (i, 0)),
    )
    shape = Shape((8 * order.shape[0], 128), F32)
    return pl.pallas_call(body, grid_spec=spec, out_shape=shape)(order, x)


class TestPrefetched:
    def test_values_of_an_argument(self):
        assert kinds(gathered, np.array([3, 0, 7]), X) == []
        finding = only(gathered, np.array([3, 8, 7]), X)
        assert (finding.kind, finding.programs) == ("out-of-range", ((1,),))

    def test_values_that_the_function_computes(self):
        @jax.jit
        def function(lengths, x):
            first = jnp.cumsum(lengths) - lengths
            return gathered(jnp.where(lengths > 0, first, 0), x)

        assert kinds(function, np.array([3, 4, 1]), X) == []
        assert only(function, np.array([3, 5, 1]), X).programs == ((2,),)

    def test_values_in_a_loop_at_first(self):
        def function(order, x):
            def step(carry, orders):
                return carry, gathered(orders, x)

            return jax.lax.scan(step, 0, order)[1]

        assert only(function, np.array([[3, 8], [0, 0]]), X).programs == ((1,),)

    def test_values_of_a_shard(self):
        mesh = jax.make_mesh((2,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
        function = jax.shard_map(
            gathered, mesh=mesh, in_specs=(P("x"), P()), out_specs=P("x"), check_vma=False
        )
        assert only(function, np.array([3, 8, 0, 0]), X).programs == ((1,),)

    def test_values_of_a_kernel_are_not_known(self):
        def function(order, x):
            def add(order_ref, o_ref):
                o_ref[...] = order_ref[...] + 9

            more = pl.pallas_call(add, out_shape=Shape(order.shape, order.dtype))(order)
            return gathered(more, x)

        analysis = analyze(function, np.array([0, 1], np.int32), X)
        assert analysis.errors == ()
        assert "depends on values that are not known here" in " ".join(analysis.report().split())

    def test_shapes_alone_say_less(self):
        analysis = analyze(gathered, Shape((3,), jnp.int32), X)
        assert analysis.findings == ()
        x_ref, o_ref = analysis.calls[0].windows
        assert x_ref.starts is None
        assert o_ref.starts.tolist() == [[0, 8, 16], [0, 0, 0]]

    @pytest.mark.parametrize(("count", "found"), [(3, []), (2, [("never-written", "o_ref")])])
    def test_size_of_the_grid(self, count, found):
        def function(order, x, count):
            return gathered(order, x, count=count)

        order = np.array([3, 0, 7])
        assert kinds(function, order, X, np.int32(count)) == found
        assert kinds(function, order, X, Shape((), jnp.int32)) == []

    def test_an_index_map_with_a_loop(self):
        """What numpy does not evaluate, JAX does."""

        def function(order, x):
            def body(order_ref, x_ref, o_ref):
                o_ref[...] = x_ref[...]

            def last(i, order):
                return jax.lax.fori_loop(0, i + 1, lambda j, m: jnp.maximum(m, order[j]), 0), 0

            spec = pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(3,),
                in_specs=[pl.BlockSpec((8, 128), last)],
                out_specs=pl.BlockSpec((8, 128), lambda i, order: (i, 0)),
            )
            return pl.pallas_call(body, grid_spec=spec, out_shape=Shape((24, 128), F32))(order, x)

        assert kinds(function, np.array([3, 0, 7]), X) == []
        assert only(function, np.array([3, 9, 7]), X).programs == ((1,), (2,))


def test_a_function_without_a_kernel():
    with pytest.raises(NoPallasCallError, match="no Pallas kernel"):
        analyze(jnp.sin, X)
