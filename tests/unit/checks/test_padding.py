"""``checks.padding``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim.errors import KernelError
from pytest_pallas import NotApplicableError
from pytest_pallas.backends.interpreters import gpu_interpret, interpret, tpu_interpret
from pytest_pallas.backends.simulators import gpu_sim, tpu_sim
from pytest_pallas.checks.padding import padding
from pytest_pallas.draw.arguments import Arguments

X = np.random.default_rng(0).standard_normal((11, 128)).astype(np.float32)


def in_blocks(body, x, *, block=8, dtype=None, shape=None, out_block=None, out_map=None):
    width = x.shape[1]
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(shape or x.shape, dtype or x.dtype),
        grid=(pl.cdiv(x.shape[0], block),),
        in_specs=[pl.BlockSpec((block, width), lambda i: (i, 0))],
        out_specs=pl.BlockSpec(out_block or (block, width), out_map or (lambda i: (i, 0))),
    )(x)


def doubles(x):
    """Computes with the padding, and writes it where nobody looks."""

    def body(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    return in_blocks(body, x)


def lowest(x):
    """The minimum of each column by comparison, from high: the padding may be lower still."""

    def body(x_ref, o_ref):
        @pl.when(pl.program_id(0) == 0)
        def _clear():
            o_ref[...] = jnp.full_like(o_ref, 1e9)

        low = o_ref[...]
        for row in range(8):
            here = x_ref[row : row + 1, :]
            low = jnp.where(here < low, here, low)
        o_ref[...] = low

    return in_blocks(body, x, shape=(1, 128), out_block=(1, 128), out_map=lambda i: (0, 0))


@pytest.fixture
def asked(context_of):
    def ask(kernel, *args, **rest):
        arguments = Arguments(args or (X,))
        return padding(context_of(kernel, arguments=arguments, backend=tpu_sim(), **rest))

    return ask


def test_what_is_computed_of_the_padding_may_change(asked):
    finding = asked(doubles)
    assert finding.failed is None
    assert len(finding.comparisons) == 2
    assert finding.outcome is not None


def test_nan_hides_from_comparisons(asked):
    failed = asked(lowest).failed
    assert failed is not None
    assert "with the lowest finite number" in failed.where
    assert failed.wrong == 128


def test_a_kernel_without_padding_has_no_such_question(context_of):
    with pytest.raises(NotApplicableError, match="no block extends beyond its array"):
        padding(context_of())


def test_it_says_with_what_a_kernel_raises(context_of):
    def row_by_padding(x):
        """Row 0 while the padding holds an end of its range, else a row that there is not."""

        def body(x_ref, o_ref):
            row = jnp.where(x_ref[7, 0] == 0, 99, 0)
            o_ref[...] = x_ref[pl.ds(row, 1), :]

        return in_blocks(body, x, shape=(2, 128), out_block=(1, 128))

    arguments = Arguments((np.ones((11, 128), np.int32),))
    with pytest.raises(KernelError, match=r"with the lowest finite number .* otherwise the kernel"):
        padding(context_of(row_by_padding, backend=tpu_sim(), arguments=arguments))


def test_scratch_is_no_padding(context_of):
    def leaks(x):
        def body(x_ref, o_ref, scratch):
            o_ref[...] = x_ref[...] + scratch[...]

        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
            grid=(2,),
            in_specs=[spec],
            out_specs=spec,
            scratch_shapes=[pltpu.VMEM((8, 128), x.dtype)],
        )(x)

    finding = padding(context_of(leaks, backend=tpu_sim(), arguments=Arguments((X,))))
    assert len(finding.comparisons) == 2
    assert finding.failed is None


def first_rows(x, count):
    """Rows before ``count`` doubled, the others zero."""

    def body(x_ref, count_ref, o_ref):
        row = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        o_ref[...] = jnp.where(row < count_ref[...], 2 * x_ref[...], 0)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, count)


def first_rows_by_weight(x, count):
    def body(x_ref, count_ref, o_ref):
        row = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0)
        o_ref[...] = (row < count_ref[...]).astype(x_ref.dtype) * 2 * x_ref[...]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, count)


COUNT = np.full((1, 1), 3, np.int32)


def beyond_count(x, count):
    return np.broadcast_to(np.arange(len(x))[:, None] >= count, x.shape), None


def test_ignored_elements_are_poisoned(asked):
    assert asked(first_rows, X, COUNT, ignored=beyond_count).failed is None
    failed = asked(first_rows_by_weight, X, COUNT, ignored=beyond_count).failed
    assert failed is not None
    assert "with NaN in the ignored elements of the arguments" in failed.where


def test_what_is_ignored_needs_no_fills(context_of):
    """A backend that knows nothing of fills, as hardware is."""

    class Elsewhere:
        name, kind, platform, target = "elsewhere", "hardware", "tpu", None

        def run(self, call):
            assert not call.fill
            return tpu_sim().run(call)

    there = {"backend": Elsewhere(), "arguments": Arguments((X, COUNT))}
    assert padding(context_of(first_rows, ignored=beyond_count, **there)).failed is None
    assert padding(context_of(first_rows_by_weight, ignored=beyond_count, **there)).failed
    with pytest.raises(NotApplicableError, match="elsewhere does not control"):
        padding(context_of(doubles, backend=Elsewhere(), arguments=Arguments((X,))))


def test_which_backends_can_be_told():
    told = (tpu_sim(), gpu_sim(), interpret(), tpu_interpret(), gpu_interpret())
    assert [getattr(b, "fills", False) for b in told] == [True, True, False, False, False]
