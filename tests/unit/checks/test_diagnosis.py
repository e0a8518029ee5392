"""``checks.diagnosis``: what is added to the error of a wrong output that is reported."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pytest_pallas import MismatchError
from pytest_pallas.checks.diagnosis import diagnose, show_larger
from pytest_pallas.checks.forward import forward
from pytest_pallas.checks.verdict import run_check
from pytest_pallas.draw.arguments import Arguments

RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def blocked(body, *args, outputs=1):
    """Run a body on blocks of 8 rows, and 128 columns that may hang over."""
    spec = pl.BlockSpec((8, 128), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(args[0].shape, args[0].dtype)
    made = pl.pallas_call(
        body,
        out_shape=[shape] * outputs if outputs > 1 else shape,
        grid=(pl.cdiv(args[0].shape[0], 8),),
        in_specs=[spec] * len(args),
        out_specs=[spec] * outputs if outputs > 1 else spec,
    )
    return made(*args)


def softmax_of_padding(x):
    """The elements beyond the edge are 0, and not left out."""

    def body(x_ref, o_ref):
        columns = jax.lax.broadcasted_iota(jnp.int32, (8, 128), 1)
        shares = jnp.exp(jnp.where(columns < x.shape[1], x_ref[...], 0))
        o_ref[...] = shares / shares.sum(axis=1, keepdims=True)

    return blocked(body, x)


def exchanged(x, y):
    def body(x_ref, y_ref, o_ref):
        o_ref[...] = y_ref[...] - x_ref[...]

    return blocked(body, x, y)


def exchanged_outputs(x, y):
    def body(x_ref, y_ref, first_ref, second_ref):
        first_ref[...], second_ref[...] = 2 * y_ref[...], 2 * x_ref[...]

    return blocked(body, x, y, outputs=2)


def random(x):
    def body(x_ref, error_ref, o_ref):
        o_ref[...] = x_ref[...] + error_ref[...]

    return blocked(body, x, jnp.asarray(normal(*x.shape)))


def failure(context_of, kernel, reference, *args):
    context = dataclasses.replace(
        context_of(kernel), reference=reference, arguments=Arguments(args)
    )
    with pytest.raises(MismatchError) as caught:
        run_check(forward, context, "twice")
    return caught.value


def facts_of(error, name):
    return [fact.text for fact in error.explanation.facts if fact.name == name]


@pytest.mark.parametrize(
    ("kernel", "reference", "args", "cause"),
    [
        (
            softmax_of_padding,
            lambda x: jax.nn.softmax(x, axis=1),
            (normal(16, 100),),
            "the kernel counts 28 zeros beyond an axis of length 100, whose blocks of 128 hang",
        ),
        (
            exchanged,
            lambda x, y: x - y,
            (normal(8, 128), normal(8, 128)),
            "the kernel exchanges argument 0 and argument 1: that gives all 1,024 wrong elements",
        ),
        (
            exchanged_outputs,
            lambda x, y: (2 * x, 2 * y),
            (normal(8, 128), normal(8, 128)),
            "the wrong elements are the values of output [",
        ),
    ],
)
def test_what_the_kernel_did_instead(context_of, kernel, reference, args, cause):
    error = failure(context_of, kernel, reference, *args)
    before = str(error)
    assert facts_of(error, "cause") == []
    diagnose(error)
    [text] = facts_of(error, "cause")
    assert text.startswith(cause)
    assert f"  cause     {text}\n" in str(error)
    assert str(error).replace(f"  cause     {text}\n", "") == before


def test_nothing_is_said_of_random_errors(context_of):
    error = failure(context_of, random, lambda x: x, normal(16, 128))
    before = str(error)
    diagnose(error)
    assert str(error) == before


def test_what_a_reference_raises_for_other_arguments_hides_no_failure(context_of):
    def reference(x):
        if x.shape != (16, 128):
            raise SystemError("of no use")
        return x

    error = failure(context_of, random, reference, normal(16, 128))
    diagnose(error)
    assert facts_of(error, "cause") == []


def test_a_larger_example_shows_the_pattern(context_of):
    reference = lambda x: jax.nn.softmax(x, axis=1)  # noqa: E731
    small, block, larger, largest = (
        failure(context_of, softmax_of_padding, reference, normal(*shape))
        for shape in ((1, 1), (8, 64), (16, 64), (32, 64))
    )
    show_larger(small, [small, largest, block, larger])
    [text] = facts_of(small, "larger")
    lines = text.splitlines()
    assert lines[0] == "float32[16, 64]"
    assert "wrong in 1024 of 1024 elements" in lines[1]
    assert lines[-1].startswith("cause: the kernel counts 64 zeros beyond an axis of length 64")
    show_larger(larger, [largest])
    assert facts_of(larger, "larger") == []


def test_a_larger_example_that_shows_no_more_is_left_out(context_of):
    """All of it is wrong, too; but beside a single element it is shown."""
    one, block, larger = (
        failure(context_of, random, lambda x: x, normal(*shape))
        for shape in ((1, 1), (8, 128), (16, 128))
    )
    show_larger(block, [larger])
    assert facts_of(block, "larger") == []
    show_larger(one, [larger])
    assert len(facts_of(one, "larger")) == 1
