"""Checks that a trace at collection shows not to apply: no item, but a record of each."""

from __future__ import annotations

import re

import pytest

RUN = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=2")

KERNELS = """
import jax
from jax.experimental import pallas as pl

from kernels import _add_body

TRACED = []

def add(x, y, *, alias=False, depth=1):
    TRACED.append(alias)
    return pl.pallas_call(
        _add_body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        input_output_aliases={0: 0} if alias else {},
    )(x, y)

def add_wide(x, y):
    return add(x, y, alias=x.shape[1] > 128)

def reference(x, y, **options):
    return x + y
"""


def options(**values: object) -> str:
    words = ", ".join(f"{name!r}: {value}" for name, value in values.items())
    return f"inputs=pst.arguments(INPUTS, options={{{words}}})"


@pytest.fixture
def aliasing(project):
    """A folder with the kernels above."""
    project.write(aliasing=KERNELS)

    def specs(*texts: str) -> None:
        project.specs(*(f"{text}, reference=reference" for text in texts))
        module = project.path / "specs.py"
        text = module.read_text().replace("from kernels import *", "from aliasing import *")
        module.write_text(f"from hypothesis import strategies as st\n{text}")

    return project, specs


def checks_of(project, *args):
    """The collected checks, and those that were left out with their requirements."""
    result = project.run(*RUN, "--collect-only", "-q", *args)
    return re.findall(r"specs.py::(\w+-[\w-]+)\[", result.stdout.str())


def test_a_check_that_does_not_apply_is_no_item_and_is_recorded(aliasing):
    project, specs = aliasing
    specs('name="plain", kernel=add', f'name="into", kernel=add, {options(alias=True)}')
    words = "--pallas-checks=forward,donation"
    assert checks_of(project, words) == ["plain-forward", "into-forward", "into-donation"]
    results = project.results(*RUN, words)
    assert [(r["kernel"], r["check"], r["outcome"]) for r in results["records"]] == [
        ("plain", "forward", "passed"), ("into", "forward", "passed"),
        ("into", "donation", "passed"),
    ]  # fmt: skip
    assert results["not_applicable"] == [
        {
            "test": "specs.py::plain-donation[tpu-sim]",
            "kernel": "plain",
            "family": "kernels",
            "check": "donation",
            "backend": "tpu-sim",
            "mesh": {},
            "requirement": "no example aliases an input",
            "found": "collection",
        }
    ]


def test_kernels_of_gpus_are_traced_at_collection_too(project):
    project.write(
        specs="""
        import jax
        from jax.experimental.pallas import mosaic_gpu as plgpu
        from pytest_pallas import KernelSpec, strategies as pst

        def double(x):
            def body(x_ref, o_ref):
                o_ref[...] = x_ref[...] * 2

            return plgpu.kernel(body, out_type=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

        SPEC = KernelSpec(
            name="double",
            kernel={"gpu": double},
            reference=lambda x: x * 2,
            inputs=pst.arrays("m n", dtype="float32", dims={"m": [8], "n": [128]}),
        )
        """
    )
    words = ("--pallas-suite=specs", "--pallas-checks=forward,donation,grid")
    result = project.run(*words, "--pallas-backend=gpu-sim", "--collect-only", "-q")
    assert re.findall(r"specs.py::(\w+-[\w-]+)\[", result.stdout.str()) == ["double-forward"]


@pytest.mark.parametrize(
    ("drawn", "kept"),
    [
        ({"alias": "st.booleans()"}, True),
        ({"alias": "st.just(False)", "depth": "st.sampled_from([4, 8, 16])"}, False),
        # Ten kinds of an option: a few traces do not show all, so the item finds out.
        ({"alias": "st.just(False)", "depth": "st.sampled_from([*'abcdefghij'])"}, True),
        ({"alias": "st.integers(0, 9).map(lambda number: number > 4)"}, True),
    ],
)
def test_every_kind_of_option_is_traced(aliasing, drawn, kept):
    project, specs = aliasing
    specs(f'name="k", kernel=add, {options(**drawn)}')
    found = checks_of(project, "--pallas-checks=forward,donation")
    assert found == ["k-forward"] + ["k-donation"] * kept


def test_what_cannot_be_traced_is_collected(project):
    project.specs(
        'name="raises", kernel=add_raises',
        'name="meshed", kernel=add_sharded, reference=reference_on_mesh, meshes=({"x": 2},), '
        "inputs=lambda mesh: INPUTS",
    )
    found = checks_of(project, "--pallas-checks=donation")
    assert found == ["raises-donation", "meshed-donation"]


def test_one_trace_serves_all_checks_and_backends(aliasing):
    project, specs = aliasing
    specs('name="k", kernel=add')
    project.write(
        conftest="""
        def pytest_collection_finish(session):
            import aliasing
            print("traced", len(aliasing.TRACED))
        """
    )
    words = ("--pallas-backend=tpu-sim,tpu-interpret,tpu-interpret:v6e", "--collect-only")
    every = project.run("--pallas-suite=specs", "--pallas-checks=all", *words, "-s")
    assert "traced 1" in every.outlines
    none = project.run("--pallas-suite=specs", "--pallas-checks=forward,vmap", *words, "-s")
    assert "traced 0" in none.outlines


def test_an_example_of_another_kind_is_asked_about_all_the_same(aliasing):
    """Which kernel a shape takes is not traced: the check is asked beside ``forward``."""
    project, specs = aliasing
    specs('name="k", kernel=add_wide, inputs=pst.arrays("m n, m n", dtype="float32", '
          'dims={"m": [8], "n": [128, 256]})')  # fmt: skip
    project.write(
        conftest="""
        from pytest_pallas import Check

        def _run(context):
            from pytest_pallas import MismatchError

            raise MismatchError("asked about a kernel with an alias")

        def _requires(spec, backend, kernels):
            aliased = any(kernel.eqn.params["input_output_aliases"] for kernel in kernels)
            return None if aliased else "no alias"

        def pytest_pallas_checks(config):
            return [
                Check(
                    name="late", asks="?", run=_run, requires_kernels=_requires,
                )
            ]
        """
    )
    results = project.results(*RUN, "--pallas-checks=forward,late")
    assert [entry["check"] for entry in results["not_applicable"]] == ["late"]
    [record] = results["records"]
    assert (record["check"], record["outcome"]) == ("forward", "failed")
    assert "k: late on tpu-sim: asked about a kernel with an alias" in record["message"]
    assert any(note["text"].startswith("ran late, too") for note in record["notes"])


@pytest.mark.parametrize(
    ("args", "counts"),
    [
        ((), "4 checks of 2 kernels"),
        (("-k", "one"), "2 checks of 1 kernel"),
        (("-k", "two and (forward or gradient)"), "1 check of 1 kernel"),
        (("--deselect", "specs.py::one-forward[tpu-sim]"), "2 checks of 1 kernel"),
        (("-k", "forward"), None),
        (("specs.py::one-forward[tpu-sim]",), None),
    ],
)
def test_only_what_was_selected_is_counted(project, args, counts):
    project.specs('name="one", kernel=add', 'name="two", kernel=add')
    words = "--pallas-checks=forward,donation,gradient"
    text = project.run(*RUN, words, *args).stdout.str()
    if counts is None:
        assert "not applicable" not in text
    else:
        assert f"not applicable: {counts} (-v lists them)" in text


def test_what_a_test_finds_out_is_counted_and_not_listed(project):
    """``-ra`` lists neither; the last line counts them apart from skips."""
    project.specs(
        'name="add", kernel=add_sharded, reference=reference_on_mesh, meshes=({"x": 2},), '
        "inputs=lambda mesh: INPUTS",
    )
    words = (*RUN, "--pallas-checks=forward,donation")
    result = project.run(*words, "-ra")
    text = result.stdout.str()
    assert "not applicable: 1 check of 1 kernel, 1 of them found during the run (-v lists" in text
    assert "SKIPPED" not in text
    result.stdout.fnmatch_lines(["*1 passed, 1 not applicable in*"])
    results = project.results(*words)
    assert [entry["found"] for entry in results["not_applicable"]] == ["run"]
    [record] = [record for record in results["records"] if record["check"] == "donation"]
    assert record["reason"] == "donation: not applicable (no example aliases an input)"
    assert record["requirement"] == "no example aliases an input"


def test_isolated_items_are_found_where_others_are_left_out(project):
    project.specs('name="add", kernel=add')
    words = (*RUN, "--pallas-checks=forward,donation", "--pallas-isolate=always")
    results = project.results(*words)
    assert [record["outcome"] for record in results["records"]] == ["passed"]
    assert [entry["check"] for entry in results["not_applicable"]] == ["donation"]
