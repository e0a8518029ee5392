"""Where equations and functions come from."""

import importlib
import inspect

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim.chips import TARGETS
from pallas_sim.compat import source
from pallas_sim.compat.jaxprs import sub_jaxprs
from pallas_sim.tracing import tracing_for

X = jnp.ones((8, 128))


def line_of(function, text):
    """The line of a function that holds a text."""
    lines, first = inspect.getsourcelines(function)
    return first + next(number for number, line in enumerate(lines) if text in line)


def helper(x):
    return jnp.sin(x)


def body(x_ref, o_ref):
    o_ref[...] = helper(x_ref[...])


def kernel(x):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))(x)


def call_and_sine(function=kernel):
    """The equation of the kernel, and that of the sine in it."""
    (call,) = jax.make_jaxpr(function)(X).eqns
    (jaxpr,) = [each for each in sub_jaxprs(call) if each.eqns]
    return call, next(eqn for eqn in jaxpr.eqns if eqn.primitive.name == "sin")


def test_the_line_of_an_equation():
    call, sine = call_and_sine()
    assert source.source_line(sine) == f"{__file__}:{line_of(helper, 'jnp.sin')}"
    place = source.place_of_call(call)
    assert (place.file, place.function) == (__file__, "kernel")
    assert place.line == line_of(kernel, "pl.pallas_call")


def test_the_places_inside_of_a_kernel():
    _, sine = call_and_sine()
    places = source.places_in_kernel(sine)
    assert [place.function for place in places] == ["body", "helper"]
    assert [place.line for place in places] == [
        line_of(body, "helper("),
        line_of(helper, "jnp.sin"),
    ]
    assert not source.is_machinery(sine)


def test_what_jax_writes_itself_is_machinery():
    def looping(x_ref, o_ref):
        def step(i, total):
            return total + jnp.sin(x_ref[i, 0])

        o_ref[0, 0] = jax.lax.fori_loop(0, 8, step, 0.0)

    def function(x):
        return pl.pallas_call(looping, out_shape=jax.ShapeDtypeStruct((8, 128), jnp.float32))(x)

    found = {}
    todo = list(jax.make_jaxpr(function)(X).eqns)
    while todo:
        eqn = todo.pop()
        found.setdefault(eqn.primitive.name, source.is_machinery(eqn))
        todo += [inner for jaxpr in sub_jaxprs(eqn) for inner in jaxpr.eqns]
    assert found["scan"]
    assert not found["sin"]


def test_the_copies_of_a_pipeline():
    def step(x_block, o_block):
        pltpu.sync_copy(x_block, o_block)

    def body(x_ref, o_ref):
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        pltpu.emit_pipeline(step, grid=(2,), in_specs=[block], out_specs=[block])(x_ref, o_ref)

    def function(x):
        spec = pl.BlockSpec(memory_space=pl.ANY)
        return pl.pallas_call(body, out_shape=x, in_specs=[spec], out_specs=spec)(x)

    moves = set()
    with tracing_for(TARGETS["v6e"]):
        todo = list(jax.make_jaxpr(function)(jnp.ones((16, 128))).eqns)
    while todo:
        eqn = todo.pop()
        if eqn.primitive.name == "dma_start":
            moves.add(source.move_of_block(eqn))
        todo += [inner for jaxpr in sub_jaxprs(eqn) for inner in jaxpr.eqns]
    assert moves == {"fetch", "write back", None}


def test_the_home_of_a_jaxpr():
    call, _ = call_and_sine()
    (jaxpr,) = [each for each in sub_jaxprs(call) if each.eqns]
    assert source.home_of(jaxpr) == ("body", __file__, line_of(body, "def body"))
    assert not source.is_of_jax(jaxpr)


def test_a_function_of_jax_is_one():
    (where,) = jax.make_jaxpr(lambda x: jnp.where(x > 0, x, 0.0))(X).eqns[-1:]
    (jaxpr,) = sub_jaxprs(where)
    assert source.is_of_jax(jaxpr)


def test_own_lines_of_a_gradient():
    def squared(x):
        return jnp.sum(
            helper(x) * x  # a line of its own
        )

    def lines():
        jaxpr = jax.make_jaxpr(jax.grad(lambda x: squared(x)))(X).jaxpr
        return {source.source_line(eqn) for eqn in jaxpr.eqns}

    with source.own_lines():
        assert f"{__file__}:{line_of(helper, 'jnp.sin')}" in lines()


def test_the_call_stack_that_jax_raises_from():
    module = importlib.import_module("jax._src.source_info_util")
    assert source.is_call_stack(module.JaxStackTraceBeforeTransformation())
    assert not source.is_call_stack(ValueError())
