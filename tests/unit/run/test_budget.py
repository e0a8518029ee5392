"""How many examples a check runs, by what they cost."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl

import pytest_pallas
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst
from pytest_pallas.budget import ExampleBudget
from pytest_pallas.draw.examples import ExampleSource
from pytest_pallas.run.fuzzing import Fuzz, fuzz

SOURCE = ExampleSource(pst.arrays("m n", dtype="float32", around=8))


def shapes_of(cost: int, trace: int = 0) -> list[tuple[int, int]]:
    """Return the shapes of the examples of a cost that a check of ten ordinary ones runs."""
    budget, shapes = ExampleBudget(count=10, least=4, most=16), []

    def run(call) -> None:
        shapes.append((call.recipe["m"], call.recipe["n"]))
        budget.costs.append(cost)
        budget.traces.setdefault(str(shapes[-1]), trace)

    fuzz(Fuzz(run=run, source=SOURCE, key="unit"), seed=0, budget=budget)
    return shapes


@pytest.mark.parametrize(
    ("cost", "trace", "shapes"), [(1000, 0, 16), (1000, 1500, 12), (3000, 0, 10)]
)
def test_cheap_examples_are_more(cost, trace, shapes):
    assert len(set(shapes_of(cost, trace))) == shapes


def test_expensive_examples_are_fewer_but_have_each_choice():
    """Every class of sizes of a dim comes at least once: there are seven."""
    assert len(shapes_of(100_000)) in (7, 8, 9)


def test_a_third_of_the_draws_have_other_values_if_their_runs_are_cheap():
    drawn = shapes_of(1000, trace=1500)
    assert len(drawn) == 12 + 4
    assert set(drawn[12:]) <= set(drawn[:12])
    assert len(shapes_of(3000)) == 10


def test_a_fixed_number_is_obeyed():
    for count in (3, 12):
        budget = ExampleBudget.fixed(count)
        what = Fuzz(
            run=lambda call, budget=budget: budget.costs.append(10**9), source=SOURCE, key="unit"
        )
        fuzz(what, seed=0, budget=budget)
        assert len(budget.costs) == count


def test_more_may_run_as_long_as_they_fit():
    budget = ExampleBudget(count=10, least=4, most=16, costs=[2000] * 12)
    assert budget.affords(6000)
    assert not budget.affords(6001)
    assert not budget.ended
    budget = ExampleBudget(count=10, least=4, most=16, costs=[9000] * 4)
    assert budget.ended
    assert str(budget).startswith("stopped after 4 of 10 examples, which cost 9,000 equations each")


def spec_of(steps: int, **inputs) -> KernelSpec:
    """Return a kernel that evaluates about so many equations."""

    def body(x_ref, o_ref):
        o_ref[...] = jax.lax.fori_loop(0, steps, lambda _, x: x + 0.0, x_ref[...])

    def kernel(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    return KernelSpec(
        name="slow",
        kernel={"tpu": kernel},
        reference=lambda x: x,
        inputs=pst.arrays("m n", dtype=jnp.float32, **inputs),
    )


def examples_that_ran(spec: KernelSpec, monkeypatch, checks="forward", **rest) -> int:
    from pytest_pallas.run import drawn

    calls = []
    ask = drawn.run_example

    def counted(*args, **keywords):
        calls.append(args)
        return ask(*args, **keywords)

    monkeypatch.setattr(drawn, "run_example", counted)
    pytest_pallas.check(spec, backend="tpu-sim", checks=checks, **rest)
    return len(calls)


def test_a_check_counts_the_equations_of_its_runs(monkeypatch):
    cheap = examples_that_ran(spec_of(1, around=8), monkeypatch)
    expensive = examples_that_ran(spec_of(20_000, around=8), monkeypatch)
    fixed = examples_that_ran(spec_of(20_000, around=8), monkeypatch, max_examples=12)
    assert cheap == 32 + 3  # with variants
    assert expensive == 11
    assert fixed == 12


def test_no_more_examples_run_if_the_check_applies_to_none(monkeypatch):
    """Without a kernel there are no blocks, whatever is drawn."""
    inputs = pst.arrays("m n", dtype="float32", around=8)
    spec = KernelSpec(
        name="none",
        kernel={"tpu": lambda x: x + 1},
        reference=lambda x: x + 1,
        inputs=inputs,
        differentiable=(0,),
    )
    assert examples_that_ran(spec, monkeypatch, checks="grid") == 8
