"""``checks.export``."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

from pytest_pallas.backends.hardware import tpu
from pytest_pallas.backends.interpreters import gpu_interpret, interpret, tpu_interpret
from pytest_pallas.checks.export import RoundTrip, export, on
from pytest_pallas.errors import KernelError, NotApplicableError


def test_every_output_is_compared_bit_for_bit(trial_of, doubled):
    finding = export(trial_of(lambda x: {"a": doubled(x), "b": [doubled(-x)]}))
    assert [comparison.where for comparison in finding.comparisons] == [
        "['a'] of the exported kernel",
        "['b'][0] of the exported kernel",
    ]
    assert {comparison.kind for comparison in finding.comparisons} == {"bitwise"}
    assert finding.failed is None


def test_other_bits_fail(trial_of, doubled, monkeypatch):
    monkeypatch.setattr(RoundTrip, "__call__", lambda self, x: [doubled(x) * (1 + 2**-23)])
    assert export(trial_of(doubled)).failed is not None


def test_options_and_static_arguments_are_part_of_the_program():
    x = jnp.ones((8, 128))
    [answer] = RoundTrip(lambda x, n, *, by: x * n * by)(x, 3, by=2)
    assert (answer == 6).all()


def test_what_cannot_be_exported_is_said(trial_of, doubled):
    def calls_back(x):
        return doubled(jax.pure_callback(lambda x: x, x, x))

    with pytest.raises(KernelError, match=r"jax\.export refuses it: .*Python on the host"):
        export(trial_of(calls_back))


def test_where_kernels_are_callbacks(trial_of):
    assert on(interpret()) is None
    assert on(tpu()) is None
    for backend in (tpu_interpret(), gpu_interpret()):
        assert "callbacks to the host" in (on(backend) or "")
        with pytest.raises(NotApplicableError, match=backend.name):
            export(trial_of(backend=backend))
    with pytest.raises(NotApplicableError, match="jit=False"):
        export(trial_of(jit=False))


def test_what_is_exported_is_compiled_as_it_is_elsewhere(trial_of):
    """XLA's optimizations change last bits, and interpreted kernels are compiled without them."""

    def body(x_ref, o_ref):
        o_ref[...] = jax.nn.gelu(x_ref[...])

    def kernel(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    assert export(trial_of(kernel)).failed is None
