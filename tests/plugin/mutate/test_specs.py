"""``--pallas-mutate`` with specs."""

from __future__ import annotations

import re

import pytest

#: Doubles its rows, of which those beyond the array are masked.
KERNELS = """
    import functools

    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl


    def _body(x_ref, o_ref, *, n):
        rows = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0) + 8 * pl.program_id(0)
        o_ref[...] = jnp.where(rows < n - 1, x_ref[...] * 2.0, x_ref[...])


    def rows(x):
        '''Twice x, but for the last row.'''
        block = pl.BlockSpec((8, 128), lambda i: (i, 0))
        return pl.pallas_call(
            functools.partial(_body, n=x.shape[0]),
            grid=(pl.cdiv(x.shape[0], 8),),
            in_specs=[block],
            out_specs=block,
            out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        )(x)


    def reference(x):
        return (x * 2).at[-1].set(x[-1])
"""

SPECS = """
    from kernels import *
    from pytest_pallas import EquivalentMutant, ExpectedFailure, KernelSpec, strategies as pst

    SPEC = KernelSpec(
        name="rows",
        kernel=rows,
        reference=reference,
        inputs=pst.arrays("m n", dtype="float32", dims={"m": [%s], "n": [128]}, values="normal"),
        vmappable=False,
        %s
    )
"""

RUN = ("--pallas-suite=specs", "--pallas-mutate", "--pallas-max-examples=2")


@pytest.fixture
def rows(project):
    """A project with one spec: the rows that are drawn, and fields of the spec."""

    def write(sizes="12, 24", more=""):
        project.write(kernels=KERNELS, specs=SPECS % (sizes, more))
        return project

    return write


def _verdicts(project, *args, **kwargs):
    [record] = project.records(*RUN, *args, **kwargs)
    return {f"{each['operator']}: {each['change']}": each["status"] for each in record["mutants"]}


def test_one_item_a_spec_tells_what_became_of_each_mutant(rows):
    project = rows()
    [record] = project.records(*RUN)
    assert record["test"].endswith("::rows-mutants")
    assert (record["kernel"], record["check"], record["outcome"]) == ("rows", "mutants", "passed")
    by = {f"{m['operator']}: {m['change']}": m for m in record["mutants"]}
    off = by["comparison: lt -> le"]
    assert off["status"] == "killed"
    assert (off["by"], off["on"]) == ("forward", "tpu-sim")
    assert off["how"] == "MismatchError"
    assert off["examples"] == 1
    assert off["source"].startswith("o_ref[...] = jnp.where(rows < n - 1")
    assert re.fullmatch(r".*kernels\.py:\d+", off["where"])
    assert {mutant["status"] for mutant in record["mutants"]} == {"killed"}


def test_what_survives_is_shown_with_its_line(rows):
    project = rows("8")  # one block, so that nothing is told of others
    result = project.run(*RUN)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            "*kernel *mutants *killed *survived*score*",
            "*survived  rows  arithmetic: add -> sub (add)",
            "*kernels.py:10",
            "*> rows = jax.lax.broadcasted_iota(jnp.int32, x_ref.shape, 0) + 8 * pl.program_id(0)",
            "score * %: * mutants, * killed, * survived",
        ]
    )


def test_mutants_meet_as_many_examples_as_the_kernel_does(rows):
    project = rows("8")
    words = ("--pallas-profile=quick", "--pallas-checks=forward", "--pallas-sanitize=none")
    plain, *_ = project.records(RUN[0], *words)
    [record] = project.records(*RUN[:2], "--pallas-mutate-operators=arithmetic", *words)
    [survivor] = [mutant for mutant in record["mutants"] if mutant["status"] == "survived"]
    assert (plain["check"], survivor["examples"]) == ("forward", plain["examples"])


def test_all_backends_are_asked(rows):
    [record] = rows().records(*RUN, "--pallas-mutate-operators=store")
    assert {mutant["operator"] for mutant in record["mutants"]} == {"store"}


def test_a_backend_without_answers_is_not_asked(rows):
    """Where the forward pass is expected to fail, no other check has anything to notice."""
    failure = "ExpectedFailure(reason='wrong there', jax='0.12', checks=('forward',))"
    project = rows(more=f"xfail={{'interpret': {failure}}},")
    args = (*RUN, "--pallas-mutate-operators=store")
    result = project.run(*args, "--pallas-backend=interpret", "-rs")
    result.assert_outcomes(skipped=1)
    said = "*mutants run on the simulator and on interpreters, and * cannot run on interpret"
    result.stdout.fnmatch_lines([said])
    for other in ("tpu-interpret", "tpu-sim"):
        [record] = project.records(*args, f"--pallas-backend=interpret,{other}")
        assert {(mutant["by"], mutant["on"]) for mutant in record["mutants"]} == {
            ("forward", other)
        }


def test_a_limit_takes_some_of_every_operator(rows):
    project = rows()
    every = _verdicts(project)
    some = _verdicts(project, "--pallas-mutate=5")
    assert len(some) == 5
    assert set(some) < set(every)
    operators = [key.partition(":")[0] for key in some]
    assert len(set(operators)) == 5


def test_a_minimum_fails_the_run(rows):
    project = rows("8")
    result = project.run(*RUN, "--pallas-mutate-min=99")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.re_match_lines([r"--pallas-mutate-min=99: the score is \d+\.\d %"])
    result = project.run(*RUN, "--pallas-mutate-min=10")
    assert result.ret == pytest.ExitCode.OK


@pytest.mark.parametrize("names", [("one", "several"), ("several", "one")])
def test_a_mutant_is_caught_if_one_of_the_specs_of_its_kernel_catches_it(project, names):
    """Whichever is asked first; one block alone tells nothing of others."""
    sizes = {"one": "8", "several": "12, 24"}
    made = [(SPECS % (sizes[name], "")).replace('"rows"', f'"{name}"') for name in names]
    second = made[1].partition("    SPEC = ")[2]
    project.write(kernels=KERNELS, specs=f"{made[0]}\n    OTHER = {second}")
    run = (*RUN, "--pallas-mutate-min=100")
    assert project.run(*run, "-k", "one").ret == pytest.ExitCode.TESTS_FAILED
    result = project.run(*run)
    assert result.ret == pytest.ExitCode.OK
    count = len(project.records(*run, "-k", "several")[0]["mutants"])
    result.stdout.re_match_lines([rf"score 100.0 %: {count} mutants, {count} killed"])


def test_time_that_is_over_leaves_mutants_untried(rows):
    statuses = _verdicts(rows(), "--pallas-mutate-time=0.001")
    assert set(statuses.values()) == {"untried"}


def test_a_mark_makes_a_survivor_equivalent_and_gives_the_reason(rows):
    mark = """equivalent=(
            EquivalentMutant(
                operator="arithmetic", source="8 * pl.program_id(0)", reason="there is one block"
            ),
        ),"""
    project = rows("8", mark)
    [record] = project.records(*RUN)
    marked = [m for m in record["mutants"] if m["marked"] and m["status"] == "equivalent"]
    assert {m["change"] for m in marked} == {"add -> sub"}
    assert {m["reason"] for m in marked} == {"there is one block"}


@pytest.mark.parametrize(
    ("operator", "source", "told"),
    [
        ("store", "o_ref", "*stale EquivalentMutant('store', source='o_ref'): forward on tpu-sim*"),
        ("mask", "nowhere", "*stale EquivalentMutant('mask', source='nowhere'): no mutant*"),
    ],
)
def test_a_stale_mark_is_told(rows, operator, source, told):
    mark = f'equivalent=(EquivalentMutant(operator="{operator}", source="{source}", reason="?"),),'
    result = rows(more=mark).run(*RUN)
    result.stdout.fnmatch_lines([told])


def test_a_check_that_fails_anyway_catches_nothing(rows):
    project = rows(more="relations=(), nan_ok=False, exact=False,")
    text = (project.path / "kernels.py").read_text().replace("(x * 2).at", "(x * 3).at")
    (project.path / "kernels.py").write_text(text)
    [record] = project.records(*RUN, "--pallas-checks=forward", "--pallas-mutate=3")
    assert {m["status"] for m in record["mutants"]} == {"survived"}
    assert any("fails without a mutant" in note["text"] for note in record["notes"])


def test_a_wrong_operator_is_refused_before_anything_runs(rows):
    result = rows().run(*RUN, "--pallas-mutate-operators=typo")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--pallas-mutate-operators: unknown 'typo'; valid: *comparison*"])


def test_going_on_after_an_earlier_run_tries_what_it_did_not_catch(rows):
    """Its holes are mended: more blocks are drawn."""
    project = rows("8")
    first = _verdicts(project)
    assert set(first.values()) == {"killed", "survived"}
    (project.path / "results.json").rename(project.path / "earlier.json")
    rows()
    [record] = project.records(*RUN, "--pallas-mutate-after=earlier.json")
    known = {m["operator"] + ": " + m["change"]: m["by"] for m in record["mutants"]}
    assert {m["status"] for m in record["mutants"]} == {"killed"}
    for mutant, status in first.items():
        by = "an earlier run" if status == "killed" else "forward"
        assert known[mutant] == by


def test_an_earlier_run_that_is_none_is_refused_before_anything_runs(rows):
    result = rows().run(*RUN, "--pallas-mutate-after=typo.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--pallas-mutate-after: *typo.json: No such file or directory*"])


def test_a_path_that_was_taken_for_the_number_is_named(rows):
    result = rows().run("--pallas-mutate", "specs.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--pallas-mutate: must be all, off or *, not 'specs.py'*"])


def test_mutants_that_hang_or_crash_are_caught_and_the_rest_goes_on(project):
    project.write(
        kernels="""
            import os

            import jax
            import jax.numpy as jnp
            import numpy as np
            from jax.experimental import pallas as pl


            def _die(found):
                if found:
                    os._exit(3)


            def _body(x_ref, o_ref):
                found = jnp.sum(jnp.where(x_ref[...] * x_ref[...] >= 0.0, 0.0, 1.0))
                jax.debug.callback(lambda found: _die(found), found)
                o_ref[...] = x_ref[...] + 1.0


            def add(x):
                return pl.pallas_call(_body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


            def reference(x):
                return x + 1
        """,
        specs="""
            from kernels import *
            from pytest_pallas import KernelSpec, strategies as pst

            SPEC = KernelSpec(
                name="add",
                kernel=add,
                reference=reference,
                inputs=pst.arrays(
                    "m n", dtype="float32", dims={"m": [8], "n": [128]}, values="normal"
                ),
                vmappable=False,
                checks=("forward",),
            )
        """,
    )
    [record] = project.records(
        *RUN,
        "--pallas-backend=interpret",
        "--pallas-isolate=auto",
        "--pallas-mutate-operators=comparison,store",
    )
    by = {f"{m['operator']}: {m['change']}": m for m in record["mutants"]}
    assert by["comparison: ge -> lt"]["how"] == "CrashError"
    assert by["comparison: ge -> lt"]["by"] == "forward"
    assert by["store: dropped"]["how"] == "MismatchError"
    assert {m["status"] for m in record["mutants"]} <= {"killed", "survived"}
