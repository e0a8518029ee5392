"""``sanitizers.donation``: kernels whose outputs share memory with an operand."""

from __future__ import annotations

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import MismatchError, NotApplicableError
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.donation import donation
from pytest_pallas.draw.arguments import Arguments

X = np.random.default_rng(0).standard_normal((24, 128)).astype(np.float32)


def ask(kernel, backend, *args):
    arguments = Arguments(args or (X,))
    return donation(
        CheckContext(kernel=kernel, reference=None, arguments=arguments, backend=backend)
    )


@pytest.fixture
def backend():
    return tpu_sim()


def in_place(body, x, *, in_map=lambda i: (i, 0), out_map=lambda i: (i, 0), scratch=(), space=None):
    def spec(index_map):
        return pl.BlockSpec(memory_space=space) if space else pl.BlockSpec((8, 128), index_map)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(3,),
        in_specs=[spec(in_map)],
        out_specs=spec(out_map),
        input_output_aliases={0: 0},
        scratch_shapes=scratch,
    )(x)


def adds_one(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    return in_place(body, x)


def adds_one_to_one_block(x):
    """The others keep what the input has, on both sides of the alias."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    spec = pl.BlockSpec((8, 128), lambda i: (1, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(1,),
        in_specs=[spec],
        out_specs=spec,
        input_output_aliases={0: 0},
    )(x)


def accumulates_in_place(x):
    """The output, which starts as the input, is read and written."""

    def body(x_ref, o_ref):
        o_ref[...] = o_ref[...] + x_ref[...]

    return in_place(body, x)


def previous_block(x):
    """Each block gets the one before, which the program before has overwritten."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    return in_place(body, x, in_map=lambda i: (jnp.maximum(i - 1, 0), 0))


def previous_block_by_hand(x):
    """As ``previous_block``, but the kernel copies where it likes, in the order that it likes."""

    def body(x_ref, o_ref, scratch, semaphore):
        i = pl.program_id(0)
        before = 8 * jnp.maximum(i - 1, 0)
        pltpu.async_copy(x_ref.at[pl.ds(before, 8)], scratch, semaphore).wait()
        scratch[...] = scratch[...] + 1
        pltpu.async_copy(scratch, o_ref.at[pl.ds(8 * i, 8)], semaphore).wait()

    scratch = [pltpu.VMEM((8, 128), x.dtype), pltpu.SemaphoreType.DMA]
    return in_place(body, x, scratch=scratch, space=pl.ANY)


@pytest.mark.parametrize(
    "kernel",
    [accumulates_in_place, adds_one, adds_one_to_one_block],
    ids=lambda kernel: kernel.__name__,
)
def test_right_kernels_pass(backend, kernel):
    assert ask(kernel, backend).failed is None


def test_copies_in_the_order_of_the_kernel_may_share_memory():
    assert ask(previous_block_by_hand, tpu_sim()).failed is None


def test_a_block_that_is_read_after_it_was_overwritten(backend):
    with pytest.raises(MismatchError) as raised:
        ask(previous_block, backend)
    text = str(raised.value)
    assert "x_ref and o_ref of body (" in text
    # Program 1 has the block of program 0 still in its window.
    assert "write of o_ref[8:16, 0:128] by device 0, program (1)" in text
    assert "read of x_ref[8:16, 0:128] by device 0, program (2)" in text
    assert [finding.kind for finding in raised.value.findings] == ["overwritten"]
    assert "test_donation.py:" in text
    assert "reads a block of that input after it overwrites it" in text


@pytest.mark.parametrize("lag", [1, 2])
def test_however_far_ahead_blocks_are_fetched(backend, lag):
    """A chip reads what a program wrote two programs before, and not what the last one wrote."""

    def read(i):
        return (jnp.maximum(i - 1, 0) if lag == 1 else i % 2), 0

    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...] + 1

        return in_place(body, x, in_map=read)

    with pytest.raises(MismatchError, match="reads a block of that input after it overwrites it"):
        ask(kernel, backend)


def test_a_block_that_is_fetched_too_late_and_not_used(backend):
    """What no answer depends on is no error; the finding is there."""

    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[...] = jnp.where(pl.program_id(0) < 2, x_ref[...] + 1, 0)

        return in_place(body, x, in_map=lambda i: (i % 2, 0))

    found = ask(kernel, backend)
    assert found.failed is None
    (finding,) = found.outcome.findings
    assert finding.kind == "overwritten"
    assert (finding.program, finding.ref, finding.shape) == ((2,), "x_ref", (24, 128))
    assert [(a.kind, a.ref, a.program) for a in finding.accesses] == [
        ("write", "o_ref", (0,)),
        ("read", "x_ref", (2,)),
    ]
    assert all(access.index == ((0, 8), (0, 128)) for access in finding.accesses)


def test_kernels_without_such_blocks_are_run_in_one_order(backend, monkeypatch):
    asked = []
    module = importlib.import_module("pytest_pallas.checks.donation")
    real = module.run

    def run(context, kernel, args, **rest):
        asked.append(rest.get("probe", ""))
        return real(context, kernel, args, **rest)

    monkeypatch.setattr(module, "run", run)
    ask(adds_one, backend)
    assert set(asked) == {""}
    with pytest.raises(MismatchError):
        ask(previous_block, backend)
    assert set(asked) == {"", "separate", "late"}


def test_a_kernel_without_aliases(backend):
    def kernel(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...]

        return pl.pallas_call(body, jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(NotApplicableError, match="no example aliases an input"):
        ask(kernel, backend)


def test_several_aliases_and_prefetched_scalars(backend):
    """Positions count the scalars; only one of the pairs is read too late."""

    def kernel(s, x, y):
        def body(s_ref, x_ref, y_ref, p_ref, o_ref):
            p_ref[...] = y_ref[...] + s_ref[0]
            o_ref[...] = x_ref[...] * 2

        here = pl.BlockSpec((8, 128), lambda i, s: (i, 0))
        before = pl.BlockSpec((8, 128), lambda i, s: (jnp.maximum(i - 1, 0), 0))
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(
            body,
            out_shape=[shape, shape],
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=(3,),
                in_specs=[before if late else here, here],
                out_specs=[here, here],
            ),
            input_output_aliases={1: 1, 2: 0},
        )(s, x, y)

    s = np.array([2], np.int32)
    late = False
    assert ask(kernel, backend, s, X, X + 1).failed is None
    late = True

    def again(*args):
        return kernel(*args)

    with pytest.raises(
        MismatchError, match="reads a block of that input after it overwrites it"
    ) as raised:
        ask(again, backend, s, X, X + 1)
    assert "x_ref and o_ref of body" in str(raised.value)


def test_a_second_call_with_the_same_arrays(backend):
    """A wrapper that remembers what it was called with, and then goes on with its own answer."""
    kept = {}

    def kernel(x):
        try:
            np.asarray(x)
        except jax.errors.TracerArrayConversionError:
            return adds_one(x)
        kept[id(x)] = adds_one(kept.get(id(x), x))
        return kept[id(x)]

    failed = ask(kernel, backend).failed
    assert failed is not None
    assert "in a second call with the same arrays" in failed.where
