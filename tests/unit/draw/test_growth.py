"""Examples grow until every way of a kernel has run: ``draw.growth``."""

import dataclasses
import math

import pytest
from hypothesis import strategies as st

from pallas_sim.coverage import Point, Reached
from pytest_pallas import strategies as pst
from pytest_pallas.backends.protocol import Outcome
from pytest_pallas.checks.context import CheckResult
from pytest_pallas.draw.arguments import as_arguments
from pytest_pallas.draw.dims import around
from pytest_pallas.draw.examples import ExampleSource
from pytest_pallas.draw.growth import Growth

RING = Point("ring", "kernel.py:3", "kernel", "buffers")
BRANCH = Point("branch", "kernel.py:5", "kernel")
LOOP = Point("loop", "kernel.py:7", "kernel")


def grown(strategy, kernel, *, budget=100_000, accepts=lambda *_: False):
    """Run planned examples and those that grow.

    ``kernel(sizes, options)`` returns what an example reaches.

    Returns the sizes of the examples that grow, and the reasons for what is not reached.
    """
    source = ExampleSource(around(strategy, {}))
    reasons, sizes = {}, []
    growth = Growth(budget=budget, accepts=accepts, explain=reasons.update)

    def run(drawn, goal=None):
        call = as_arguments(drawn)
        named = {name: size for name, size in call.recipe.items() if isinstance(size, int)}
        reached = tuple(kernel(named, {**call.options, **call.tuning}))
        outcome = Outcome(coverage=reached, steps=math.prod(call.args[0].shape) // 8)
        growth.note(drawn, CheckResult(comparisons=(), outcome=outcome))
        if goal is not None:
            sizes.append({name: size for name, size in named.items() if name != "seed"})

    for drawn in source.choose(0, 8).values():
        run(drawn)
    growth.grow(source, 0, run)
    return sizes, reasons


def ring(slots, uses):
    counts = {"first": min(uses, slots), "again": max(0, uses - slots)}
    missing = ("again",) if uses <= slots else ()
    return Reached(point=RING, counts=counts, missing=missing, slots=slots, used=uses)


def branch(taken, others, **fields):
    missing = ((), ("true",))[not taken] + ((), ("false",))[not others]
    return Reached(point=BRANCH, counts={"true": taken, "false": others}, missing=missing, **fields)


def late(sizes, options):
    """``pl.when(step >= 6)`` along m, in tiles of 8."""
    steps = sizes["m"] // 8
    return [branch(max(0, steps - 6), min(steps, 6), needs={"true": (("program_id", 2), ">=", 6)})]


TILES = {"m": 8, "n": 128}


@pytest.mark.parametrize("slots", range(2, 9))
def test_a_ring_goes_round(slots):
    sizes, reasons = grown(
        pst.arrays("m n", multiple_of=TILES), lambda sizes, _: [ring(slots, sizes["m"] // 8)]
    )
    assert not reasons
    assert len(sizes) <= 3
    if slots > 2:
        assert max(one["m"] for one in sizes) >= 8 * (slots + 1)


def test_a_late_step_is_reached():
    sizes, reasons = grown(pst.arrays("m n", multiple_of=TILES), late)
    assert not reasons
    assert sizes[-1]["m"] >= 56
    assert [one["n"] for one in sizes].count(128) >= len(sizes) - 1


def test_more_tiles_than_programs():
    def persistent(sizes, _):
        tiles = (sizes["m"] // 8) * (sizes["n"] // 128)
        rounds = [len(range(program, tiles, 32)) for program in range(32)]
        counts = {"none": rounds.count(0), "one": rounds.count(1), "several": 0}
        counts["several"] = 32 - sum(counts.values())
        missing = [way for way, count in counts.items() if not count]
        return [Reached(point=LOOP, counts=counts, missing=tuple(missing))]

    sizes, reasons = grown(pst.arrays("m n", multiple_of=TILES), persistent)
    assert not reasons
    assert (sizes[-1]["m"] // 8) * (sizes[-1]["n"] // 128) > 32


def test_what_has_run_costs_nothing():
    sizes, reasons = grown(pst.arrays("m n", multiple_of=TILES), lambda *_: [ring(2, 9)])
    assert (sizes, reasons) == ([], {})


def test_nothing_grows_for_an_accepted_way():
    accepted = grown(
        pst.arrays("m n", multiple_of=TILES),
        late,
        accepts=lambda one, way, _: (one.point, way) == (BRANCH, "true"),
    )
    assert accepted == ([], {})


@pytest.mark.parametrize(
    ("strategy", "reason"),
    [
        (pst.arrays("m n", multiple_of=TILES, max_dim=128), ""),
        (pst.arrays("m n", around={"m": 8}, dims={"n": [128]}, max_dim=40), "m is at most 40 (max"),
        (pst.arrays("m n", dims={"m": [8, 40], "n": [128]}), "dims= lists no size of m that reach"),
        (pst.arrays("m n", dims={"m": st.integers(8, 64), "n": 128}), ""),
        (pst.arrays("m n", dims={"m": st.integers(1, 8).map(lambda n: 8 * n), "n": 128}), ""),
        (
            pst.arrays("m n", multiple_of=TILES, max_elements=40 * 128),
            "m is at most 40 (max_elements",
        ),
        (pst.arrays("m 128; m % 16 = 0"), ""),
    ],
)
def test_the_domain_bounds_what_grows(strategy, reason):
    _, reasons = grown(strategy, late)
    if not reason:
        assert not reasons
    else:
        [text] = reasons.values()
        assert text.startswith("needs 7 or more steps along axis 2 of the grid: ")
        assert reason in text


def test_more_steps_than_the_budget():
    _, reasons = grown(pst.arrays("m n", multiple_of=TILES), late, budget=2_000)
    assert list(reasons.values()) == [
        "needs 7 or more steps along axis 2 of the grid: not reached within 2,000 steps "
        "(--pallas-growth)"
    ]


def test_a_condition_that_no_size_changes():
    sizes, reasons = grown(pst.arrays("m n", multiple_of=TILES), lambda *_: [branch(1, 0)])
    assert reasons == {(BRANCH, "false"): "no size of m or n changes it"}
    assert len(sizes) <= 4


def test_a_condition_that_holds_for_no_index():
    def kernel(sizes, options):
        needs = {"true": (("program_id", 1), "<", 0)}
        yield branch(0, sizes["m"] // 8, needs=needs)

    sizes, reasons = grown(pst.arrays("m n", multiple_of=TILES), kernel)
    assert not sizes
    assert reasons == {
        (BRANCH, "true"): "no size reaches it, because the index along grid axis 1 is never < 0"
    }


def test_a_way_that_a_program_rules_out_by_its_size():
    def ruled_out(sizes, _):
        [reached] = late(sizes, _)
        if not reached.missing:
            return [reached]
        return [dataclasses.replace(reached, missing=(), unreachable={"true": "the grid has .."})]

    sizes, reasons = grown(pst.arrays("m n", multiple_of=TILES), ruled_out)
    assert sizes
    assert not reasons


def test_an_option_that_decides():
    strategy = pst.arguments(
        pst.arrays("m n", multiple_of=TILES), tuning={"stages": st.sampled_from([3, 4, 6, 8])}
    )
    sizes, reasons = grown(
        strategy, lambda sizes, tuning: [ring(tuning["stages"], sizes["m"] // 8)]
    )
    assert not reasons
    assert len(sizes) == 1


def test_the_same_examples_grow_again():
    strategy = pst.arrays("m n", multiple_of=TILES)
    assert grown(strategy, late) == grown(strategy, late)


def test_what_no_size_decides_gets_further_examples():
    source = ExampleSource(around(pst.arrays("m n", multiple_of=TILES), {}))
    reasons, further = {}, []
    growth = Growth(budget=100_000, explain=reasons.update)

    def run(drawn, goal=None):
        call = as_arguments(drawn)
        reached = branch(int(call.recipe["seed"] in further), 1)
        outcome = Outcome(coverage=(reached,), steps=1)
        growth.note(drawn, CheckResult(comparisons=(), outcome=outcome))

    calls = [*source.choose(0, 16).values()]
    run(calls[0])
    further.append(as_arguments(calls[4]).recipe["seed"])
    growth.grow(source, 0, run, lambda: calls[1:])
    assert not reasons
    assert len(growth.seen) <= 12
