"""``checks.verdict``."""

from __future__ import annotations

import dataclasses
import linecache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_sim.errors import KernelError, PallasError
from pytest_pallas import MismatchError
from pytest_pallas.backends.interpreters import interpret
from pytest_pallas.checks.forward import forward
from pytest_pallas.checks.grid import grid
from pytest_pallas.checks.memory import memory
from pytest_pallas.checks.verdict import conclude, content_facts, run_check
from pytest_pallas.draw.arguments import Arguments


def wrong(reference):
    return lambda x: reference(x) * 1.5


def raising(_):
    raise ValueError("no")


def test_a_failure_ends_with_what_was_drawn(context_of, doubled):
    with pytest.raises(MismatchError, match=r"wrong in 1024 of 1024(.|\n)*inputs    float32"):
        run_check(forward, context_of(wrong(doubled)), "twice")


@pytest.mark.parametrize("explained", [True, False])
def test_whether_it_is_explained_makes_no_other_difference(context_of, doubled, explained):
    run_check(forward, context_of(doubled, explained=explained), "twice")
    with pytest.raises(KernelError, match="ValueError: no"):
        run_check(forward, context_of(raising, explained=explained), "twice")


def test_a_failure_that_nobody_reads_says_what_failed(context_of, doubled):
    with pytest.raises(MismatchError, match=r"^twice: forward on tpu-sim$"):
        run_check(forward, context_of(wrong(doubled), explained=False), "twice")


def test_without_examples_nothing_is_concluded(context_of):
    backend = context_of().backend
    strict = dataclasses.replace(forward, conclude=lambda evidence: f"{len(evidence)} examples")
    conclude(strict, [], "twice", backend)
    with pytest.raises(MismatchError, match="1 examples"):
        conclude(strict, [1], "twice", backend)


def test_masks_and_ids_of_the_call_are_described():
    mask, ids = np.tril(np.ones((5, 5), bool)), np.array([0, 0, 1], np.int32)
    facts = content_facts(Arguments((np.ones(3), mask, {"ids": ids})))
    assert [(fact.name, fact.text) for fact in facts] == [
        ("mask", "argument 1: causal 5x5"),
        ("ids", "argument 2['ids']: int32[3] [0 0 1]"),
    ]


def test_a_failure_has_them(context_of):
    """Shapes alone have no contents."""
    arguments = Arguments((np.zeros((2, 2), bool), jax.ShapeDtypeStruct((2,), np.int32)))
    context = dataclasses.replace(context_of(lambda *_: raising(0)), arguments=arguments)
    with pytest.raises(PallasError, match=r"mask      argument 0: bool\[2, 2\], all False"):
        run_check(forward, context, "twice")


def _sum_of_rows(masked):
    def body(x_ref, o_ref):
        x, rows = x_ref[...], jax.lax.broadcasted_iota(np.int32, (16, 128), 0)
        x = jax.numpy.where(rows < 13, x, 0) if masked else x
        o_ref[...] = x.sum(axis=0, keepdims=True)

    return lambda x: pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((1, 128), x.dtype),
        grid=(1,),
        in_specs=[pl.BlockSpec((16, 128), lambda i: (0, 0))],
        out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
    )(x)


def test_nan_from_beyond_the_edge_is_said_to_be_that(context_of):
    context = dataclasses.replace(
        context_of(_sum_of_rows(masked=False)),
        reference=lambda x: x.sum(axis=0, keepdims=True),
        arguments=Arguments((np.ones((13, 128), np.float32),)),
    )
    with pytest.raises(MismatchError) as caught:
        run_check(forward, context, "sums")
    causes = [fact.text for fact in caught.value.explanation.facts if fact.name == "cause"]
    assert causes == [
        "perhaps elements beyond the edge: blocks [16, 128] of x_ref (input 0 of body) hang over "
        "its array [13, 128]; mask them in the kernel"
    ]
    run_check(forward, dataclasses.replace(context, kernel=_sum_of_rows(masked=True)), "sums")


def test_another_wrong_answer_of_such_a_kernel_is_not(context_of):
    context = dataclasses.replace(
        context_of(_sum_of_rows(masked=True)),
        reference=lambda x: x.sum(axis=0, keepdims=True) + 1,
        arguments=Arguments((np.ones((13, 128), np.float32),)),
    )
    with pytest.raises(MismatchError) as caught:
        run_check(forward, context, "sums")
    assert "beyond the edge" not in str(caught.value)


def test_blocks_that_no_writer_has_are_no_cause(context_of):
    """Nothing writes the last column, and only its block would hang over."""

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    def kernel(x):
        spec = pl.BlockSpec((8, 128), lambda i: (0, i))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(body, out_shape=out, grid=(1,), in_specs=[spec], out_specs=spec)(x)

    context = dataclasses.replace(
        context_of(kernel),
        reference=lambda x: x,
        arguments=Arguments((np.ones((8, 129), np.float32),)),
    )
    with pytest.raises(MismatchError, match="no program of body") as caught:
        run_check(forward, context, "copy")
    assert "beyond the edge" not in str(caught.value)


def _copied(rows=8, grid=(2,), cleared=True):
    """Copy the first rows of each block."""

    def body(x_ref, o_ref):
        if not cleared:
            o_ref[...] += x_ref[...]
        else:
            o_ref[0:rows] = x_ref[0:rows]

    def kernel(x):
        spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
        out = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(body, out_shape=out, grid=grid, in_specs=[spec], out_specs=spec)(x)

    return kernel


def _facts(context_of, kernel, dtype=np.float32, **rest):
    context = dataclasses.replace(
        context_of(kernel),
        reference=lambda x: x,
        arguments=Arguments((np.arange(1, 16 * 128 + 1).reshape(16, 128).astype(dtype),)),
        **rest,
    )
    with pytest.raises(MismatchError) as caught:
        run_check(forward, context, "copy")
    facts = caught.value.explanation.facts
    return {fact.name: fact.text for fact in facts}


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.uint16])
def test_rows_that_nothing_wrote_are_written_by_no_program(context_of, dtype):
    facts = _facts(context_of, _copied(rows=4), dtype)
    assert facts["block"].startswith("never written: in output block (")
    assert facts["block"].endswith(" of body (grid (2,))")
    assert facts["cause"].startswith(
        "output 0 (o_ref) of body: 1024 of 2048 elements were never written, in 2 of 2 blocks: in "
        "block (0, 0) [4:8, 0:128]"
    )


def test_nan_that_a_program_computed_is_written_by_it(context_of):
    assert _facts(context_of, _copied(cleared=False))["block"].startswith("written by program (0)")


def test_where_memory_cannot_be_filled_nobody_is_said_to_have_written_it(context_of):
    facts = _facts(context_of, _copied(rows=4), backend=interpret())
    assert facts["block"] == "output block (0, 0) = [0:8, 0:128] of program (0) of body (grid (2,))"


def test_a_grid_without_programs_is_said_to_be_that(context_of):
    facts = _facts(context_of, _copied(grid=(0,)))
    assert facts["block"] == ("body has the grid (0,), so no program runs, and nothing is written")
    twice = _facts(context_of, lambda x: _copied(grid=(0,))(_copied()(x)))
    assert "has the grid (0,): no program runs" in twice["cause"]


def test_a_dynamic_grid_without_programs_is_said_to_be_that(context_of):
    """Its size is computed from the arguments, also in another jitted function."""

    def copied(x):
        return _copied(grid=(jax.jit(lambda x: jnp.sum(x > 1e6))(x),))(x)

    facts = _facts(context_of, copied)
    assert facts["block"] == "body has the grid (0,), so no program runs, and nothing is written"
    assert facts["cause"] == "output 0 (o_ref) of body: no element was ever written"
    twice = _facts(context_of, lambda x: copied(_copied()(x)))
    assert "has the grid (0,): no program runs" in twice["cause"]  # its size is of the first one
    facts = _facts(context_of, copied, backend=interpret())
    assert facts["block"] == "body has the grid (0,), so no program runs, and nothing is written"
    for check in (memory, grid):
        with pytest.raises(PallasError, match=r"grid \(0,\)(: no program runs|, which has no)"):
            check(context_of(copied, lambda x: x))


@pytest.mark.parametrize(
    ("raising", "text"),
    [
        (lambda x: x[pl.ds(0, 8, stride=-1)], "x[pl.ds(0, 8, stride=-1)]"),  # a dataclass of JAX
        (lambda x: np.reshape(jax.jit(lambda x: np.reshape(x, 3))(x), 4), "np.reshape(x, 3)"),
    ],
)
def test_a_kernel_that_raises_is_at_its_own_line(context_of, raising, text):
    with pytest.raises(KernelError) as caught:
        run_check(forward, context_of(raising), "copy")
    raised = [line for line in str(caught.value).splitlines() if "raised at" in line]
    assert len(raised) == 1
    assert f"raised at {__file__}:" in raised[0]
    assert text in raised[0]


def test_code_that_cannot_be_read_is_no_line(context_of):
    names: dict = {}
    exec("def kernel(x):\n\n\n    return x.reshape(3)\n", names)
    with pytest.raises(KernelError, match=rf"raised at {__file__}:\d+ in <lambda>") as caught:
        run_check(forward, context_of(lambda x: names["kernel"](x)), "copy")
    assert "<string>" not in str(caught.value)
    assert "\n  raised in kernel, line 4 of code without a file\n" in str(caught.value)


def test_code_of_a_notebook_that_raises_is_shown(context_of):
    names, source = {}, "def kernel(x):\n    return x.reshape(3)\n"
    linecache.cache["<ipython-input-1>"] = (len(source), None, source.splitlines(True), "")
    exec(compile(source, "<ipython-input-1>", "exec"), names)
    with pytest.raises(KernelError, match=rf"raised at {__file__}:\d+ in <lambda>") as caught:
        run_check(forward, context_of(lambda x: names["kernel"](x)), "copy")
    line = "\n  raised in kernel, <ipython-input-1>:2: return x.reshape(3)\n"
    assert line in str(caught.value)
    del linecache.cache["<ipython-input-1>"]
