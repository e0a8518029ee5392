"""``checks.export``."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.extend.core import Primitive

from pallas_sim.errors import KernelError
from pytest_pallas import NotApplicableError
from pytest_pallas.backends.hardware import tpu
from pytest_pallas.backends.interpreters import gpu_interpret, interpret, tpu_interpret
from pytest_pallas.backends.protocol import RunSettings
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.export import RoundTrip, SimulatedTrip, export, requires_backend
from pytest_pallas.draw.arguments import Arguments


@pytest.fixture(params=[interpret, tpu_sim], ids=["interpret", "tpu-sim"])
def exporting(context_of, request):
    """On the backends whose kernels can be exported without hardware."""
    return functools.partial(context_of, backend=request.param())


def test_every_output_is_compared_bit_for_bit(exporting, doubled):
    finding = export(exporting(lambda x: {"a": doubled(x), "b": [doubled(-x)]}))
    assert [comparison.where for comparison in finding.comparisons] == [
        "['a'] of the exported kernel",
        "['b'][0] of the exported kernel",
    ]
    assert {comparison.kind for comparison in finding.comparisons} == {"bitwise"}
    assert finding.failed is None


def test_other_bits_fail(exporting, doubled, monkeypatch):
    for trip in (RoundTrip, SimulatedTrip):
        monkeypatch.setattr(trip, "__call__", lambda self, x: [doubled(x) * (1 + 2**-23)])
    assert export(exporting(doubled)).failed is not None


def test_another_trace_gives_another_answer(exporting, doubled):
    """The function is traced once for the answer, and once to be exported."""
    factors = iter(range(1, 9))

    def changing(x):
        return doubled(x) * next(factors)

    assert export(exporting(changing)).failed is not None


def test_options_and_static_arguments_are_part_of_the_program():
    x = jnp.ones((8, 128))
    [answer] = RoundTrip(lambda x, n, *, by: x * n * by)(x, 3, by=2)
    assert (answer == 6).all()


def test_what_cannot_be_exported_is_said(exporting, doubled):
    def calls_back(x):
        return doubled(jax.pure_callback(lambda x: x, x, x))

    with pytest.raises(KernelError, match=r"jax\.export rejects it: .*Python on the host"):
        export(exporting(calls_back))


def test_a_callback_inside_of_a_kernel(context_of):
    def body(x_ref, o_ref):
        @pl.when(x_ref[0, 0] > 0)
        def _():
            o_ref[...] = jax.pure_callback(lambda x: x, jax.typeof(x_ref[...]), x_ref[...])

    def kernel(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    with pytest.raises(KernelError, match=r"callback to Python, pure_callback at .*test_export"):
        export(context_of(kernel))


def test_kernels_anywhere_in_a_program_are_exported(context_of, doubled):
    """In branches, loops, batches, gradients; of keys and of arrays of every dtype."""

    @jax.custom_vjp
    def differentiated(x):
        return doubled(x)

    differentiated.defvjp(lambda x: (doubled(x), None), lambda _, g: (doubled(g),))

    def kernel(x):
        y = jax.lax.cond(x[0, 0] > 0, doubled, lambda x: x, x)
        z, _ = jax.lax.scan(lambda carry, _: (doubled(carry), None), y, length=2)
        batch = jax.vmap(doubled)(jnp.stack([y, z]))
        slope = jax.grad(lambda x: jax.jit(differentiated)(x).sum())(x)
        return batch, slope, doubled(x.astype(jnp.bfloat16)), doubled(jnp.int8(x))

    finding = export(context_of(kernel))
    assert len(finding.comparisons) == 4
    assert finding.failed is None


def test_keys_of_random_numbers(exporting, doubled):
    finding = export(
        exporting(
            lambda key: doubled(jax.random.normal(key, (8, 128))),
            arguments=Arguments((jax.random.key(0),)),
        )
    )
    assert finding.failed is None


def test_numbers_of_python_among_the_answers(exporting, doubled):
    assert export(exporting(lambda x: (doubled(x), 0.5, 3, True))).failed is None


def test_what_a_kernel_prints_is_no_callback(context_of):
    """On a TPU a kernel's own prints are no callbacks to Python."""

    def body(x_ref, o_ref):
        pl.debug_print("first: {}", x_ref[0, 0])
        o_ref[...] = x_ref[...]

    def kernel(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    assert export(context_of(kernel)).failed is None


def test_what_is_not_simulated_is_not_exported(context_of, doubled):
    runs = Primitive("runs_a_program")
    runs.def_impl(lambda x, jaxpr: x)
    runs.def_abstract_eval(lambda x, jaxpr: x)
    program = jax.make_jaxpr(lambda x: x)(1.0)

    with pytest.raises(NotApplicableError, match=r"'runs_a_program'.* cannot be exported"):
        export(context_of(lambda x: doubled(runs.bind(x, jaxpr=program))))


def test_where_kernels_are_callbacks(context_of):
    assert requires_backend(interpret()) is None
    assert requires_backend(tpu()) is None
    for backend in (tpu_interpret(), gpu_interpret()):
        assert "callbacks to the host" in (requires_backend(backend) or "")
        with pytest.raises(NotApplicableError, match=backend.name):
            export(context_of(backend=backend))
    assert requires_backend(tpu_sim()) is None
    with pytest.raises(NotApplicableError, match="jit=False"):
        export(context_of(settings=RunSettings(jit=False)))


def test_what_is_exported_is_compiled_as_it_is_elsewhere(exporting):
    """XLA's optimizations change last bits, and interpreted kernels are compiled without them."""

    def body(x_ref, o_ref):
        o_ref[...] = jax.nn.gelu(x_ref[...])

    def kernel(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    assert export(exporting(kernel)).failed is None
