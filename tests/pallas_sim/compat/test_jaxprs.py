"""What is read off jaxprs."""

import importlib
import sys

import jax
import jax.extend.core
import jax.numpy as jnp
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim.compat import jaxprs

X = jax.ShapeDtypeStruct((8, 128), jnp.float32)


def equation(function, *args, name):
    """The first equation of a primitive in what a function traces to."""
    todo = list(jax.make_jaxpr(function)(*args).eqns)
    while todo:
        eqn = todo.pop(0)
        if eqn.primitive.name == name:
            return eqn
        todo += [inner for jaxpr in jaxprs.sub_jaxprs(eqn) for inner in jaxpr.eqns]
    raise AssertionError(name)


def called(body, **options):
    return equation(pl.pallas_call(body, out_shape=X, **options), X, name="pallas_call")


def test_the_jaxprs_inside_of_an_equation():
    def function(x):
        return lax.cond(x[0, 0] > 0, jnp.sin, jnp.cos, x)

    inside = list(jaxprs.sub_jaxprs(equation(function, X, name="cond")))
    assert sorted(jaxpr.eqns[0].primitive.name for jaxpr in inside) == ["cos", "sin"]
    assert not list(jaxprs.sub_jaxprs(equation(jnp.sin, X, name="sin")))


def test_constants_of_a_jaxpr():
    table = jnp.arange(3.0)
    jaxpr, consts = jaxprs.open_jaxpr(jax.make_jaxpr(lambda x: x * table)(table))
    assert len(consts) == len(jaxpr.constvars)
    assert all((const == table).all() for const in consts)


def test_numbers_in_a_jaxpr():
    eqn = equation(lambda x: x + 2.0, X, name="add")
    assert [jaxprs.is_literal(atom) for atom in eqn.invars] == [False, True]


def test_which_references_a_body_reads_and_writes():
    def body(x_ref, o_ref, a_ref, b_ref):
        a_ref[...] = x_ref[...]
        o_ref[...] = b_ref[...] + a_ref[...]

    scratch = [pltpu.VMEM((8, 128), jnp.float32)] * 2
    jaxpr = called(body, scratch_shapes=scratch).params["jaxpr"]
    assert jaxprs.written_inputs(jaxpr) == {1, 2}
    assert jaxprs.read_inputs(jaxpr) == {0, 2, 3}
    assert jaxprs.argument_names(jaxpr)[:2] == ("x_ref", "o_ref")


def test_the_name_of_a_kernel():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    assert jaxprs.kernel_name(called(body, name="copied")) == "copied"
    assert jaxprs.kernel_name(called(body)) == "body"


@pytest.mark.parametrize("constants", [0, 2])
def test_the_operands_of_a_scan(constants):
    outer = [jnp.float32(n) + jnp.zeros(3) for n in range(constants)]

    def function(carry, xs, *consts):
        return lax.scan(lambda c, x: (sum(consts, c) + x, c), carry, xs)

    eqn = equation(function, jnp.zeros(3), jnp.zeros((5, 3)), *outer, name="scan")
    assert jaxprs.scan_parts(eqn.params, len(eqn.invars)) == (constants, 1, 1)


def test_the_home_of_a_primitive_whose_name_others_have():
    gather = equation(lambda x, i: x[i], jnp.zeros(3), jnp.zeros(2, int), name="gather")
    assert jaxprs.home_of_primitive(gather.primitive) == ""
    sine = equation(jnp.sin, X, name="sin")
    assert jaxprs.home_of_primitive(sine.primitive) == ""


def test_the_home_of_a_primitive_whose_module_is_imported_again(monkeypatch):
    """Pytest in pytest drops the modules that an inner run imported."""
    home = "jax._src.pallas.mosaic.sc_primitives"
    primitive = importlib.import_module(home).barrier_p
    monkeypatch.delitem(sys.modules, home)
    assert jaxprs.home_of_primitive(primitive) == home


def test_references_discharged():
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] + 1

    jaxpr = called(body).params["jaxpr"]
    found = jaxprs.discharged(jaxpr)
    x = jnp.ones((8, 128), jnp.float32)
    first, second = jax.extend.core.jaxpr_as_fun(found)(x, x)
    assert (first == 1).all()
    assert (second == 2).all()


def test_dead_code():
    def copy(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    kernel = pl.pallas_call(copy, out_shape=X)

    def function(x):
        dead = jax.jit(lambda x: (kernel(x), x))(x)[0]
        jax.debug.callback(lambda x: None, dead[0, 0] * 0 if x.ndim == 0 else x[0, 0])
        return jnp.sin(x) + jax.jit(lambda x: (kernel(x), x))(x)[1]

    def names(jaxpr):
        inner, _ = jaxprs.open_jaxpr(jaxpr)
        found = [eqn.primitive.name for eqn in inner.eqns]
        return found + [
            name for eqn in inner.eqns for each in jaxprs.sub_jaxprs(eqn) for name in names(each)
        ]

    traced = jax.make_jaxpr(function)(X)
    assert names(traced).count("pallas_call") == 2
    for _ in range(2):  # also of what is cached
        left = names(jaxprs.without_dead_code(traced))
        assert "pallas_call" not in left
        assert {"sin", "debug_callback"} <= set(left)
    live = jax.make_jaxpr(lambda x: kernel(x) + 1)(X)
    assert names(jaxprs.without_dead_code(live)).count("pallas_call") == 1


def test_traces_of_jax_are_limited():
    cache = importlib.import_module("jax._src.interpreters.partial_eval").trace_to_jaxpr
    assert cache.cache_info().maxsize == -1, "JAX has a limit now: limit_traces can go"
    functions = [jax.jit(lambda x, n=n: x + n) for n in range(5)]
    for function in functions:
        function.trace(X)
    assert not jaxprs.limit_traces(cache.cache_info().currsize)
    assert cache.cache_info().currsize >= 5
    assert jaxprs.limit_traces(4)
    assert cache.cache_info().currsize == 0
