"""docs/api: every public name, fixture and hook has its entry, and the example is typed."""

import functools
import importlib
import re
from pathlib import Path

import pytest

import pallas_sim
import pytest_pallas
from pallas_sim import traces
from pytest_pallas import fixtures, hookspecs, plugin, strategies

FOLDER = Path(__file__).parents[2] / "docs/api"
PAGES = {page.stem: page.read_text() for page in FOLDER.glob("*.md")}
ENTRIES = re.findall(r"^\.\. auto\w+:: ([\w.]+)$", "\n".join(PAGES.values()), re.MULTILINE)

#: The types of the fixtures that are called; an entry has the arguments of the call.
CALLED = {
    "pallas_benchmark": "PallasBenchmark",
    "pallas_check": "PallasCheck",
    "pallas_compile": "PallasCompile",
    "pallas_mesh": "PallasMesh",
    "pallas_run": "PallasRun",
    "pallas_verify": "PallasVerify",
}

PUBLIC = [
    *(f"pytest_pallas.{name}" for name in pytest_pallas.__all__),
    *(f"pytest_pallas.strategies.{name}" for name in strategies.__all__),
    *(f"pytest_pallas.hookspecs.{name}" for name in vars(hookspecs) if name.startswith("pytest_")),
    *(
        f"pytest_pallas.{CALLED[name]}" if name in CALLED else f"pytest_pallas.fixtures.{name}"
        for name in plugin.__all__
        if hasattr(fixtures, name)
    ),
    *(f"pallas_sim.{name}" for name in pallas_sim.__all__),
    *(f"pallas_sim.traces.{name}" for name in traces.__all__),
]

#: Named in a sentence: what stands there is not generated.
SENTENCES = {
    "pytest_pallas.__version__": "index",
    "pytest_pallas.strategies": "strategies",
    "pallas_sim.traces.FOREIGN_PRIMITIVES": "simulator",
    "pallas_sim.traces.KERNEL_PRIMITIVES": "simulator",
}

#: The same objects under a second public name.
ALSO = {
    "pytest_pallas.Arguments": "pytest_pallas.strategies.Arguments",
    "pallas_sim.Finding": "pallas_sim.findings.Finding",
    **{
        f"pallas_sim.{name}": f"pytest_pallas.{name}"
        for name in pallas_sim.__all__
        if name.endswith("Error")
    },
}


@pytest.mark.parametrize("name", sorted(set(PUBLIC)))
def test_has_an_entry(name):
    if name in SENTENCES:
        assert name.rpartition(".")[2] in PAGES[SENTENCES[name]]
    else:
        assert ALSO.get(name, name) in ENTRIES


def test_no_name_has_two_entries():
    assert sorted(set(ENTRIES)) == sorted(ENTRIES)


@pytest.mark.parametrize("name", sorted(CALLED.values()))
def test_the_arguments_of_fixtures_are_shown(name):
    assert f"autoclass:: pytest_pallas.{name}\n   :members: __call__\n" in PAGES["fixtures"]


@pytest.mark.parametrize("name", sorted(set(PUBLIC) - SENTENCES.keys()))
def test_has_a_docstring_of_its_own(name):
    package, *attributes = name.split(".")
    thing = functools.reduce(getattr, attributes, importlib.import_module(package))
    assert thing.__doc__
    assert thing.__doc__ != getattr(type(thing), "__doc__", None)
    assert not thing.__doc__.startswith(f"{getattr(thing, '__name__', '')}(")  # a dataclass's own


def test_the_example_of_annotations_passes(blocks, pytester):
    [(name, block)] = [each for each in blocks("docs/api/fixtures.md") if each[0]]
    (pytester.path / name).write_text(block)
    pytester.makepyfile(
        kernels="""
        import jax
        from jax.experimental import pallas as pl

        def add(x, y):
            def body(x_ref, y_ref, o_ref):
                o_ref[...] = x_ref[...] + y_ref[...]
            return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x, y)
        """
    )
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "--pallas-backend=tpu-sim")
    result.assert_outcomes(passed=1)
