"""``checks.raises``, and ``Raises``."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pytest_pallas
from pytest_pallas import KernelSpec, MismatchError, NotApplicableError, Raises, SpecError
from pytest_pallas import strategies as pst
from pytest_pallas.checks.raises import raises
from pytest_pallas.draw.arguments import Arguments

WIDE = Raises((jax.ShapeDtypeStruct((8, 100), jnp.float32),), ValueError, match="multiple of 128")


@pytest.fixture
def strict(doubled):
    """Doubles whole tiles, and rejects all else."""

    def kernel(x, *, scale=2, block=8):
        if block < 1:
            raise ValueError(f"block must be positive, but it is {block}")
        if x.ndim != 2:
            raise TypeError(f"x must be a matrix, but its shape is {x.shape}")
        if x.shape[1] % 128:
            raise ValueError(f"x must have a multiple of 128 columns, not {x.shape[1]}")
        return doubled(x) * (scale / 2)

    return kernel


def failure(context):
    with pytest.raises(MismatchError) as caught:
        raises(context)
    return str(caught.value)


def test_a_kernel_that_rejects_every_call_passes(context_of, strict):
    listed = (
        WIDE,
        Raises((np.ones((8, 100), np.float32),), ValueError),
        Raises(pst.shaped("m n", dtype="float32", dims={"m": 8, "n": 1}), (KeyError, ValueError)),
        Raises(lambda call: (call.args[0][0],), TypeError, match=r"matrix.*\(128,\)"),
        Raises(lambda call: call.args, ValueError, match="block", options={"block": 0}),
        Raises(lambda call: dataclasses.replace(call, tuning={"block": -1}), ValueError, "block"),
    )
    finding = raises(context_of(strict, raises=listed))
    assert finding.failed is None


def test_a_call_that_is_accepted_fails(context_of, doubled):
    text = failure(context_of(doubled, raises=(WIDE,)))
    assert "raises[0]: the kernel returned float32[8, 100], and must raise ValueError" in text
    assert "matching 'multiple of 128'" in text


def test_another_type_of_error_fails_with_its_cause(context_of, strict):
    wrong = Raises(lambda call: (call.args[0][0],), ValueError, name="vector")
    context = context_of(strict, raises=(WIDE, wrong))
    text = failure(context)
    assert "vector: the kernel raised TypeError: x must be a matrix" in text
    assert "and must raise ValueError" in text
    assert "raises[0]" not in text
    with pytest.raises(MismatchError) as caught:
        raises(context)
    assert isinstance(caught.value.__cause__, TypeError)


def test_another_message_fails(context_of, strict):
    text = failure(context_of(strict, raises=(dataclasses.replace(WIDE, match="lanes"),)))
    assert "ValueError says 'x must have a multiple of 128 columns, not 100'" in text
    assert "which does not match 'lanes'" in text


def test_every_wrong_call_is_listed(context_of, doubled):
    text = failure(context_of(doubled, raises=(WIDE, dataclasses.replace(WIDE, name="again"))))
    assert [line.split(":")[0].strip() for line in text.splitlines()[1:3]] == ["raises[0]", "again"]


def test_an_error_of_the_simulator_is_not_that_of_the_kernel(context_of, doubled):
    from jax.experimental import pallas as pl

    def beyond(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[pl.ds(8 + pl.program_id(0), 8), :]

        shape = jax.ShapeDtypeStruct((8, 128), x.dtype)
        return pl.pallas_call(body, grid=(1,), out_shape=shape)(x)

    drawn = Raises(lambda call: call.args, ValueError)
    assert "the kernel raised BoundsError" in failure(context_of(beyond, raises=(drawn,)))
    named = dataclasses.replace(drawn, error=pytest_pallas.BoundsError)
    assert raises(context_of(beyond, raises=(named,))).failed is None


def test_options_replace_what_was_drawn(context_of, strict):
    seen = []

    def kernel(x, **words):
        seen.append(words)
        return strict(x, **words)

    x = np.ones((8, 128), np.float32)
    arguments = Arguments((x,), options={"scale": 3}, tuning={"block": 8})
    listed = (Raises(lambda call: call.args, ValueError, options={"block": 0}),)
    raises(context_of(kernel, arguments=arguments, raises=listed))
    assert seen == [{"scale": 3, "block": 0}]


def test_mistakes_of_the_function_are_named(context_of):
    for args, words in (
        (lambda call: call.args[7], r"raises\[0\]: args raised IndexError for a drawn call"),
        (lambda call: call.args[0], r"raises\[0\]: args returned ndarray, not a tuple"),
    ):
        with pytest.raises(SpecError, match=words):
            raises(context_of(raises=(Raises(args, ValueError),)))


def test_it_needs_a_list(context_of):
    with pytest.raises(NotApplicableError, match=r"raises=\[Raises"):
        raises(context_of())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"args": np.ones(3)}, "args must be a tuple .* not ndarray; one array is"),
        ({"error": "ValueError"}, "error must be a type of exception"),
        ({"error": ()}, "error must be a type of exception"),
        ({"error": KeyboardInterrupt}, "error must be a type of exception"),
        ({"error": (ValueError, Exception)}, "more specific than Exception"),
        ({"match": "("}, "match must be a regular expression, and '\\(' is none"),
        ({"match": None}, "match must be a regular expression"),
        ({"match": "[", "name": "odd"}, "Raises 'odd': match"),
    ],
)
def test_wrong_fields(fields, words):
    with pytest.raises(SpecError, match=words):
        Raises(**{"args": (), "error": ValueError} | fields)


def test_what_a_spec_refuses():
    with pytest.raises(SpecError, match=r"raises must hold Raises\(args, error.* not <class"):
        KernelSpec(
            name="k", kernel=jnp.sin, reference=jnp.sin, inputs=pst.arrays("n"),
            raises=[ValueError],
        )  # fmt: skip


def test_a_function_is_asked_too(strict):
    x = np.ones((8, 128), np.float32)
    given = {"reference": lambda x: 2 * x, "checks": "raises"}
    pytest_pallas.check(strict, x, raises=[WIDE], **given)
    with pytest.raises(MismatchError, match="kernel: raises on tpu-sim"):
        pytest_pallas.check(strict, x, raises=[dataclasses.replace(WIDE, match="lanes")], **given)
