"""The precision of the baseline's products of float32 is the one that the kernel asks for.

The kernels round their operands themselves, so that what they compute is TF32 on any backend.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pytest_pallas import Linear
from pytest_pallas.backends.simulators import gpu_sim, tpu_sim
from pytest_pallas.checks.context import ComparisonPeer, exactly, expect, product_precision
from pytest_pallas.checks.cross import cross
from pytest_pallas.checks.forward import blocks, forward
from pytest_pallas.checks.golden import GoldenRequest, Goldens, keeping
from pytest_pallas.checks.relations import linearity
from pytest_pallas.checks.transformations import gradient, vmap
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.judge.tolerance import ProductPrecision
from pytest_pallas.replay.goldens import Store

HIGHEST = jax.lax.Precision.HIGHEST


def tf32(x):
    """Float32 rounded to ten bits, half away from zero."""
    words = jax.lax.bitcast_convert_type(x, jnp.uint32)
    return jax.lax.bitcast_convert_type((words + 0x1000) & jnp.uint32(0xFFFFE000), jnp.float32)


def multiply(x, y, *, precision=None, rounded=True, off=0, tiles=1):
    """x @ y, of tiles of rows; ``off`` drops so many of the terms."""

    def body(x_ref, y_ref, o_ref):
        a, b = x_ref[...], y_ref[...]
        a, b = (tf32(a), tf32(b)) if rounded else (a, b)
        kept = jnp.arange(a.shape[1]) < a.shape[1] - off
        o_ref[...] = jnp.dot(jnp.where(kept, a, 0), b, precision=precision)

    rows = x.shape[0] // tiles
    return pl.pallas_call(
        body,
        grid=tiles,
        in_specs=[
            pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0)),
            pl.BlockSpec(y.shape, lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((rows, y.shape[1]), lambda i: (i, 0)),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
    )(x, y)


@jax.custom_vjp
def multiply_with_gradient(x, y):
    return multiply(x, y)


multiply_with_gradient.defvjp(
    lambda x, y: (multiply(x, y), (x, y)),
    lambda kept, ct: (multiply(ct, kept[1].T), multiply(kept[0].T, ct)),
)


@pytest.fixture
def products(context_of):
    """``products(kernel, **fields)``: a context of a product of matrices, on gpu-sim."""

    def make(kernel=multiply, reference=jnp.dot, **rest):
        rng = np.random.default_rng(1)
        x, y = (rng.standard_normal(shape, np.float32) for shape in ((32, 64), (64, 16)))
        given = {"backend": gpu_sim(), "arguments": Arguments((x, y))} | rest
        return context_of(kernel, reference, **given)

    return make


def in_precision(**options):
    return functools.partial(multiply, **options)


class TestForward:
    def test_a_product_in_the_precision_that_the_kernel_asks_for_passes(self, products):
        for precision in (None, "default", "high", "TF32_TF32_F32"):
            assert forward(products(in_precision(precision=precision))).failed is None

    def test_a_better_product_passes(self, products):
        assert forward(products(in_precision(rounded=False))).failed is None

    def test_a_dropped_term_fails(self, products):
        assert forward(products(in_precision(off=1))).failed is not None

    def test_a_product_that_misses_the_precision_it_asks_for_fails(self, products):
        for precision in ("highest", "F32_F32_F32"):
            finding = forward(products(in_precision(precision=precision)))
            assert finding.failed is not None
            assert finding.failed.error > 100
            right = products(in_precision(precision=precision, rounded=False))
            assert forward(right).failed is None

    def test_a_reference_that_names_a_precision_has_that(self, products):
        named = functools.partial(jnp.dot, precision="highest")
        assert forward(products(reference=named)).failed is not None
        named = functools.partial(jnp.dot, precision="high")
        assert forward(products(reference=named)).failed is None

    def test_a_reference_that_jax_cannot_trace_is_rounded(self, products):
        def reads_values(x, y):
            return x @ y if x[0, 0] < 1000 else y

        assert forward(products(reference=reads_values)).failed is None

    def test_without_a_product_in_the_kernel_nothing_is_allowed(self, products):
        def summed(x, y):
            def body(x_ref, y_ref, o_ref):
                a, b = tf32(x_ref[...]), tf32(y_ref[...])
                o_ref[...] = jnp.sum(a[:, :, None] * b[None], axis=1)

            shape = jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype)
            return pl.pallas_call(body, out_shape=shape)(x, y)

        assert forward(products(summed)).failed is not None

    def test_outputs_without_products_are_as_exact_as_before(self, products):
        def also_added(x, y):
            def body(x_ref, o_ref):
                o_ref[...] = x_ref[...] * (1 + 2.0**-11)

            return multiply(x, y), pl.pallas_call(body, out_shape=x)(x)

        finding = forward(products(also_added, lambda x, y: (x @ y, x)))
        assert [c.passed for c in finding.comparisons] == [True, False]

    def test_on_a_tpu_the_baseline_is_float32(self, products):
        assert product_precision(products(backend=tpu_sim())) is None
        assert forward(products(backend=tpu_sim())).failed is not None

    def test_a_failure_and_the_notes_name_the_precision(self, products):
        expected = expect(products())
        assert expected.products == ProductPrecision("tf32", 10)
        assert "multiplies float32 as tf32" in str(expected.notes[-1])


def test_a_batch_has_the_same_baseline(products):
    assert vmap(products()).failed is None
    assert vmap(products(in_precision(off=1))).failed is not None
    assert vmap(products(in_precision(precision=HIGHEST))).failed is not None


def test_the_gradient_has_the_precision_of_its_own_kernels(products):
    context = dataclasses.replace(products(multiply_with_gradient), differentiable=(0, 1))
    assert gradient(context).failed is None
    worse = jax.custom_vjp(in_precision(precision=HIGHEST))
    worse.defvjp(
        lambda x, y: (multiply(x, y), (x, y)),
        lambda kept, ct: (
            multiply(ct, kept[1].T, precision=HIGHEST),
            multiply(kept[0].T, ct, precision=HIGHEST),
        ),
    )
    context = dataclasses.replace(products(worse), differentiable=(0, 1))
    # The forward pass asks for TF32, and is dead code in the gradient.
    assert gradient(context).failed is not None


def test_each_tuning_has_its_own_precision(products):
    def tuned(x, y, *, precision="highest"):
        return multiply(x, y, precision=precision, tiles=2)

    drawn = products().arguments
    tuning = dataclasses.replace(drawn, tuning={"precision": None})
    finding = blocks(products(tuned, arguments=tuning))
    assert finding.failed is not None
    assert finding.subject == "default tuning instead of the drawn one"


def test_each_side_of_two_has_its_own_precision(products):
    def other(**options):
        return ComparisonPeer(
            name="peer", function=in_precision(**options), backend=gpu_sim(), is_kernel=True
        )

    exact = in_precision(precision=HIGHEST, rounded=False)
    assert cross(products(exact, others=(other(),))).failed is None
    assert cross(products(others=(other(precision=HIGHEST, rounded=False),))).failed is None
    finding = cross(products(exact, others=(other(precision=HIGHEST),)))
    assert "peer by" in finding.subject


def test_two_calls_of_a_kernel_are_compared_with_its_precision(products):
    relations = (Linear(0),)
    assert linearity(products(relations=relations)).failed is None
    wrong = products(in_precision(precision=HIGHEST), relations=relations)
    assert linearity(wrong).failed is not None


def test_integers_are_exact_where_their_products_are(products):
    few = np.arange(32 * 64, dtype=np.float32).reshape(32, 64) % 16
    many = few + 4096  # thirteen bits: TF32 has eleven
    for x, exact in ((few, True), (many, False)):
        drawn = Arguments((x, np.ones((64, 16), np.float32)))
        context = products(arguments=drawn, exact=2**20)
        assert exactly(context) == exact
        assert forward(context).failed is None
    context = products(in_precision(precision=HIGHEST, rounded=False), arguments=drawn, exact=2**20)
    assert exactly(context)


def test_a_golden_has_the_precision_of_the_kernel_that_gave_it(products, tmp_path):
    pytest.importorskip("safetensors")

    def kept(mode, **fields):
        goldens = Goldens(store=Store(tmp_path), mode=mode, most=1 << 20)
        return keeping(forward, "multiply", GoldenRequest(goldens=goldens, test="t")).run(
            products(**fields)
        )

    def elsewhere(x, y):
        return multiply(x, y, precision=HIGHEST, rounded=False)

    assert kept("record").goldens == {"recorded": 1}
    (golden,) = Store(tmp_path).goldens()
    assert golden.products == ProductPrecision("tf32", 10)
    found = kept("replay", kernel=elsewhere, backend=tpu_sim())
    assert found.failed is None
    assert found.goldens["compared"] == 1


class TestOnTpus:
    """With the arithmetic of the chip, in the passes of the precision that the kernel asks for."""

    @pytest.fixture
    def on_tpu(self, products):
        def make(precision=None, reference=jnp.dot, arithmetic="chip", **options):
            context = products(
                in_precision(precision=precision, rounded=False, **options),
                reference,
                backend=tpu_sim(),
            )
            settings = dataclasses.replace(context.settings, arithmetic=arithmetic)
            return dataclasses.replace(context, settings=settings)

        return make

    @pytest.mark.parametrize(
        ("precision", "bits", "passes"), [(None, 7, 1), ("high", 15, 3), ("highest", 22, 6)]
    )
    def test_a_right_kernel_passes_and_a_dropped_term_fails(self, on_tpu, precision, bits, passes):
        context = on_tpu(precision)
        known = product_precision(context)
        assert (known.bits, known.passes) == (bits, passes)
        assert forward(context).failed is None
        assert forward(on_tpu(precision, off=1)).failed is not None
        expected = expect(context)
        assert f"multiplies float32 as {known.name}, the lowest" in str(expected.notes[-1])

    @pytest.mark.parametrize("sign", [1, -1])
    def test_terms_of_one_sign(self, on_tpu, sign):
        """The product of what is cut off is missing: all errors have one sign."""
        for precision in ("high", "highest"):
            context = on_tpu(precision)
            x, y = context.arguments.args
            arguments = Arguments((abs(x), sign * abs(y)))
            assert forward(dataclasses.replace(context, arguments=arguments)).failed is None

    def test_less_than_it_asks_for_fails(self, products, on_tpu):
        """A kernel that rounds to ten bits itself, and asks for three passes."""
        context = on_tpu("high")
        rounded = dataclasses.replace(context, kernel=in_precision(precision="high"))
        assert forward(rounded).failed is not None

    def test_a_reference_that_names_a_precision_has_that(self, on_tpu):
        high = functools.partial(jnp.dot, precision="high")
        assert forward(on_tpu(None, high)).failed is not None
        assert forward(on_tpu("highest", high)).failed is None

    def test_without_the_arithmetic_of_the_chip_it_is_float32(self, on_tpu):
        for arithmetic in ("", "float32"):
            context = on_tpu(arithmetic=arithmetic)
            assert product_precision(context) is None
            assert forward(context).failed is None
