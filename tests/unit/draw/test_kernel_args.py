"""``kernel_args``: the calls of a spec."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import strategies as st
from jax.sharding import Mesh

from pytest_pallas import KernelSpec, SpecError
from pytest_pallas import strategies as pst


def add(x, y, **options):
    return x + y


PLAIN = KernelSpec(name="plain", kernel=add, reference=add, inputs=pst.arrays("m, m"))
CALLS = pst.arguments(
    pst.arrays("m, m", around=8, dtype="float32"),
    options={"causal": st.booleans()},
    tuning={"block": st.sampled_from([8, 16])},
)
WHOLE = dataclasses.replace(PLAIN, name="whole", inputs=CALLS)
MESHED = KernelSpec(
    name="meshed",
    kernel=add,
    reference=add,
    meshes=({"x": 2}, {"x": 4}),
    inputs=lambda mesh: pst.arrays("m, m", multiple_of=8 * mesh.size, dtype="float32"),
)


def mesh(count, axis="x"):
    return Mesh(np.array(jax.devices()[:1] * count), (axis,))


def test_calls_of_a_spec_whose_inputs_are_arrays(draws):
    for call in draws(pst.kernel_args(PLAIN), 20):
        assert isinstance(call, pst.Arguments)
        assert call.args[0].shape == call.args[1].shape == (call.recipe["m"],)


def test_calls_with_options_and_tuning(draws):
    drawn = draws(pst.kernel_args(WHOLE))
    assert {call.options["causal"] for call in drawn} == {True, False}
    assert {call.tuning["block"] for call in drawn} == {8, 16}
    assert [repr(call) for call in drawn] == [repr(call) for call in draws(CALLS)]


def test_calls_for_a_mesh(draws):
    one = mesh(1)
    drawn = draws(pst.kernel_args(MESHED, mesh=one), 20)
    assert {call.recipe["m"] for call in drawn} == {8, 16, 24}


def test_a_call_of_a_spec_shrinks(shrunk):
    text = shrunk(pst.kernel_args(WHOLE), lambda call: call.recipe["m"] > 8)
    assert "m=9, dtype=float32, values=integers, seed=0" in text
    assert "options=(causal=False), tuning=(block=8)" in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pst.kernel_args(add), "takes a KernelSpec, not <function add"),
        (lambda: pst.kernel_args(KernelSpec), "takes a KernelSpec, not <class"),
        (lambda: pst.kernel_args(MESHED), "'meshed' depend on a mesh, such as {'x': 2} or"),
        (lambda: pst.kernel_args(MESHED, mesh=2), "takes a jax.sharding.Mesh with axes as in"),
        (lambda: pst.kernel_args(MESHED, mesh=mesh(1, "y")), "with axes as in {'x': 2}"),
        (lambda: pst.kernel_args(PLAIN, mesh=mesh(1)), "'plain' has no meshes; drop mesh="),
        (
            lambda: pst.kernel_args(
                dataclasses.replace(MESHED, inputs=lambda mesh: None), mesh=mesh(1)
            ),
            "inputs of spec 'meshed' must be a strategy, not None",
        ),
    ],
)
def test_a_wrong_argument_is_named(make, words):
    with pytest.raises(SpecError, match=words):
        make()
