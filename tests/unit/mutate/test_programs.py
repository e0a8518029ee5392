"""Kernels are found and mutated wherever they are called from."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import Mesh, PartitionSpec
from pallas_test_support.mutated import BACKEND, X, found, kernel, one, ran, traced

from pytest_pallas.backends.protocol import Call, RunSettings
from pytest_pallas.errors import MutantError
from pytest_pallas.mutate import mutants_of, mutated

#: What the kernels below do to 128 columns.
PLUS, MINUS = X + 1, X - 1


def _body(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1.0


def plus(x):
    return pl.pallas_call(_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def by_kernel(x):
    mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1)

    def body(x_ref, o_ref):
        def inner(buffer):
            pltpu.sync_copy(x_ref, buffer)
            buffer[...] = buffer[...] + 1.0
            pltpu.sync_copy(buffer, o_ref)

        pl.run_scoped(inner, pltpu.VMEM(x.shape, x.dtype))

    return pl.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype), mesh=mesh)(x)


@jax.custom_vjp
def with_gradient(x):
    return plus(x)


with_gradient.defvjp(lambda x: (plus(x), None), lambda _, g: (plus(g),))


def sharded(x):
    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ("x",))
    spec = PartitionSpec("x")
    return jax.shard_map(plus, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)(x)


def scanned(x):
    return jax.lax.scan(lambda carry, _: (plus(carry), None), x, None, length=3)[0]


def branched(x):
    return jax.lax.cond(x[0, 0] < 1.0, plus, lambda x: x, x)


@pytest.mark.parametrize(
    ("function", "steps"),
    [
        (plus, 1),
        (by_kernel, 1),
        (jax.jit(plus), 1),
        (lambda x: jax.vmap(plus)(x[None])[0], 1),
        (with_gradient, 1),
        (sharded, 1),
        (scanned, 3),
        (branched, 1),
        (lambda x: jax.vjp(with_gradient, x)[1](x)[0], 1),
    ],
    ids=["call", "kernel", "jit", "vmap", "vjp", "shard_map", "scan", "cond", "gradient"],
)
def test_a_mutant_is_made_wherever_the_kernel_is_called(function, steps):
    mutant = one(function, X, operator="arithmetic", change="add -> sub")
    call = Call(
        function=function, args=(X,), settings=RunSettings(devices=2 if function is sharded else 1)
    )
    right = BACKEND.run(call).unwrap()
    np.testing.assert_array_equal(right, X + steps)
    wrong = BACKEND.run(call.with_settings(rewriting=mutant)).unwrap()
    np.testing.assert_array_equal(wrong, X - steps)


def test_the_place_is_the_users_line():
    mutant = one(plus, X, operator="arithmetic", change="add -> sub")
    lines, start = inspect.getsourcelines(_body)
    assert mutant.where == f"{__file__}:{start + 1}"
    assert mutant.source == lines[1].strip() == "o_ref[...] = x_ref[...] + 1.0"
    assert mutant.kernel == "_body"


def test_the_place_in_a_gradient_is_the_users_line():
    mutant = one(
        lambda x: jax.vjp(with_gradient, x)[1](x)[0], X, operator="arithmetic", change="add -> sub"
    )
    assert mutant.source == "o_ref[...] = x_ref[...] + 1.0"


def test_a_helper_that_is_called_twice_has_a_mutant_for_each_call():
    def masked(x, n):
        return jnp.where(jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < n, x, 0.0)

    def body(x_ref, o_ref):
        first = masked(x_ref[...], 64)
        second = masked(x_ref[...], 96)
        o_ref[...] = first + second

    call = kernel(body, (8, 128))
    mutants = [m for m in mutants_of(traced(call, X), ("mask",)) if m.change == "dropped"]
    assert len({m.places[0].line for m in mutants}) == 2
    answers = [ran(call, X, mutant=m).unwrap() for m in mutants]
    assert not np.array_equal(*answers)


def test_a_loop_in_python_is_one_mutant_for_all_rounds():
    def body(x_ref, o_ref):
        total = x_ref[...]
        for _ in range(3):
            total = total + 1.0
        o_ref[...] = total

    call = kernel(body, (8, 128))
    mutant = one(call, X, operator="arithmetic", change="add -> sub")
    np.testing.assert_array_equal(ran(call, X, mutant=mutant).unwrap(), X - 3)


def test_functions_of_jax_are_units():
    """``%`` takes six operations, of which the user wrote one."""

    def body(x_ref, o_ref):
        o_ref[...] = jnp.where(pl.program_id(0) % 3 == 0, x_ref[...], 0.0)

    assert set(found(kernel(body, (8, 128), grid=(1,)), X)) == {
        "comparison: eq -> ne",
        "mask: dropped",
        "mask: inverted",
        "store: dropped",
    }


def test_loops_that_jax_wrote_are_left_alone():
    def body(x_ref, o_ref):
        o_ref[...] = jax.lax.fori_loop(0, 4, lambda _, x: x * 2.0, x_ref[...])

    operations = found(kernel(body, (8, 128)), X, operators=("arithmetic", "comparison"))
    assert operations == ["arithmetic: mul -> add"]


def test_what_is_not_there_changes_nothing():
    mutant = one(plus, X, operator="arithmetic", change="add -> sub")
    other = traced(kernel(lambda x_ref, o_ref: None, (8, 128)), X)
    assert mutated(other, mutant) is other


def test_mutants_are_equal_in_every_shape():
    def call(x):
        return plus(x)

    wide = np.ones((16, 256), np.float32)
    assert mutants_of(traced(call, X)) == mutants_of(traced(call, wide))


def test_a_mutant_that_cannot_be_made_says_so(monkeypatch):
    mutant = one(plus, X, operator="arithmetic", change="add -> sub")

    def fails(*_):
        raise TypeError("no such operand")

    monkeypatch.setattr("pytest_pallas.mutate.programs._rewritten", fails)
    error = ran(functools.partial(plus), X, mutant=mutant).error
    assert isinstance(error, MutantError)
    assert "could not be made: TypeError: no such operand" in str(error)


def test_a_mutated_program_is_kept_for_the_next_check():
    program, mutant = traced(plus, X), one(plus, X, operator="arithmetic", change="add -> sub")
    assert mutated(program, mutant) is mutated(program, mutant)
