"""benchmarks/: each can be imported, and the functions that one wraps by name exist."""

import importlib
import importlib.util
import os
import sys
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

ROOT = Path(__file__).parents[2]


@pytest.fixture
def load(monkeypatch):
    """Import a benchmark, which imports what is beside it, and may set variables for its run."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    monkeypatch.setattr(os, "environ", dict(os.environ))

    def load(name):
        file = ROOT / f"benchmarks/{name}.py"
        spec = importlib.util.spec_from_file_location(f"benchmark_{name}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, spec.name, module)  # dataclasses look themselves up
        spec.loader.exec_module(module)
        return module

    return load


def test_what_the_main_job_measures_exists(load):
    wrapped = load("main_job").WRAPPED
    paths = [path for part in wrapped.values() for path in part]
    assert len(paths) > 10
    for path in paths:
        module, _, names = path.partition(":")
        found = importlib.import_module(module)
        for name in names.split("."):
            found = getattr(found, name)
        assert callable(found), path


def test_order_alarms_runs_as_it_says():
    done = run_python("benchmarks/order_alarms.py", "--runs", "0", cwd=ROOT, ours=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "0 calls in 0 runs, 0 alarms"


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem
)
def test_a_benchmark_can_be_imported(load, path):
    assert load(path.stem).__doc__


def test_programs_that_compilers_may_refuse(load):
    """The same number makes the same; what a compiler says counts without names and numbers."""
    refusals = load("refusals")
    for source in refusals.SOURCES:
        names = [refusals.program(source, number, 1, "tpu").name for number in range(4)]
        assert len(set(names)) == 4
        assert refusals.program(source, 2, 1, "tpu").name == names[2]
    assert refusals.cause(
        "f: refused for v6e: Invalid vector<8x128xf32> of 16 rows\nat f.py:3"
    ) == ("Invalid T of N rows")


def test_a_launch_of_a_kernel_is_changed_in_one_part(load):
    import jax
    import jax.numpy as jnp
    from jax.experimental import pallas as pl

    refusals = load("refusals")
    x = jnp.zeros((8, 128))

    def blocks(x):
        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...]

        spec = pl.BlockSpec((8, 128), lambda: (0, 0))
        return pl.pallas_call(body, out_shape=x, in_specs=[spec], out_specs=spec)(x)

    def traced(seed):
        try:
            return str(jax.make_jaxpr(lambda x: refusals._another_launch(blocks, seed, x))(x))
        except ValueError:
            return "rejected"

    changed = [traced(seed) for seed in range(6)]
    assert changed == [traced(seed) for seed in range(6)]
    assert len({*changed, str(jax.make_jaxpr(blocks)(x))}) > 3
    assert "BlockSpec" in refusals.CHANGES[0]
