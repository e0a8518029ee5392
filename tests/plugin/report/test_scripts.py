"""The stand-alone script that a failure writes: where it is, and that it tells right from wrong."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from bare_python import run_bare

#: Kernels that are wrong, each for one check, unless the environment says that they are mended.
KERNELS = """
import os
import jax, jax.numpy as jnp
from jax.custom_batching import custom_vmap
from kernels import add, reference

MENDED = "MENDED" in os.environ

def off(x, y):
    return add(x, y) if MENDED else add(x, y) + 1

@jax.custom_vjp
def off_gradient(x, y):
    return add(x, y)

def pull(_, ct):
    return (ct if MENDED else 2 * ct), ct

off_gradient.defvjp(lambda x, y: (add(x, y), None), pull)

@custom_vmap
def off_vmap(x, y):
    return add(x, y)

@off_vmap.def_vmap
def _(size, batched, x, y):
    x, y = (v if b else jnp.broadcast_to(v, (size, *v.shape)) for v, b in zip((x, y), batched))
    return add(x, y) if MENDED else add(x, y[::-1]), True

def raises(x, y):
    if not MENDED:
        raise ValueError("no block divides it")
    return add(x, y)

def off_dtype(x, y):
    return add(x, y) if MENDED else add(x, y).astype(jnp.bfloat16)

SCALE = 2.0
OPTIONS = pst.arguments(INPUTS, options={"act": jax.nn.silu, "k": 2}, tuning={"block": 8})

def off_options(x, y, *, act, k, block=16):
    return add(act(x), k * y) if MENDED else add(act(x), k * y + block)
"""

SPECS = (
    'name="off", kernel=off, checks=("forward",)',
    'name="off_gradient", kernel=off_gradient, differentiable=(0, 1), checks=("gradient",)',
    'name="off_vmap", kernel=off_vmap, vmappable=True, checks=("vmap",)',
    'name="raises", kernel=raises, checks=("forward",)',
    'name="off_dtype", kernel=off_dtype, checks=("forward",)',
    'name="off_options", kernel=off_options, inputs=OPTIONS, checks=("forward",), '
    "reference=lambda x, y, act, k: act(x) + k * y",
)

QUICK = ("--pallas-suite=specs", "--pallas-max-examples=2")


def write(project, *specs, kernels=KERNELS):
    project.specs(*specs)
    text = (project.path / "specs.py").read_text()
    (project.path / "specs.py").write_text(text.replace("SPEC_0", f"{kernels}\nSPEC_0", 1))


def printed(result: pytest.RunResult) -> list[str]:
    """What is said of the scripts of a run."""
    found = [re.match(r"(?:  script    |script: )(.*)", line) for line in result.outlines]
    return [match.group(1) for match in found if match]


def test_scripts_tell_wrong_kernels_from_mended_ones(project, tmp_path_factory):
    write(project, *SPECS)
    records = project.records(*QUICK, "--pallas-backend=interpret,tpu-interpret")
    scripts = {Path(record["script"]) for record in records if record["script"]}
    checks = {"off": "forward", "off_gradient": "gradient", "off_vmap": "vmap"}
    names = [*checks, "raises", "off_dtype", "off_options"]
    assert {path.name for path in scripts} == {
        f"{name}-{checks.get(name, 'forward')}-{backend}.py"
        for name in names
        for backend in ("interpret", "tpu-interpret")
    }
    assert {path.parent for path in scripts} == {project.path / "pallas-failures"}
    ordered = sorted(path for path in scripts if "-tpu-" not in path.name)
    ordered += [path for path in sorted(scripts) if path.name.startswith("off-forward-tpu")]
    packages = tmp_path_factory.mktemp("packages")
    for ended, path in zip(run_bare(ordered, packages), ordered, strict=True):
        assert ended.status == 1, ended.output
        words = "the kernel raised" if "raises" in path.name else "of the reference: float32"
        assert words in ended.output
    for ended in run_bare(ordered, packages, {"MENDED": "1"}):
        assert ended.status == 0, ended.output
        assert ended.output.endswith("no failure\n")


def test_it_is_in_the_cache_without_results_and_overwritten(project):
    write(project, SPECS[0])
    [path] = printed(project.run(*QUICK, "--pallas-backend=interpret"))
    assert path == str(project.path / ".pytest_cache/d/pallas-failures/off-forward-interpret.py")
    Path(path).write_text(Path(path).read_text() + "old")
    assert printed(project.run(*QUICK, "--pallas-backend=interpret")) == [path]
    assert not Path(path).read_text().endswith("old")
    scripts = [name for name in os.listdir(Path(path).parent) if name.endswith(".py")]
    assert scripts == [Path(path).name]


def test_two_tests_of_one_name_have_a_script_each(project):
    write(project, SPECS[0])
    text = (project.path / "specs.py").read_text()
    (project.path / "others.py").write_text(text)
    run = ("--pallas-suite=specs,others", "--pallas-backend=interpret", "--pallas-max-examples=2")
    paths = printed(project.run(*run))
    assert [Path(path).name for path in paths] == [
        "off-forward-interpret.py", "off-forward-interpret-2.py",
    ]  # fmt: skip
    assert printed(project.run(*run)) == paths


def test_why_there_is_none(project):
    write(project, SPECS[0])
    quick = (*QUICK, "--pallas-backend=interpret")
    [line] = printed(project.run("-p", "no:cacheprovider", *quick))
    assert line.startswith("none: no folder for it without pytest's cache; give --pallas-results")
    (project.path / "pallas-failures").write_text("in the way")
    result = project.run(*quick, "--pallas-results=results.json")
    result.assert_outcomes(failed=1)
    [line] = printed(result)
    assert line.startswith("none: not written: FileExistsError")


def test_none_for_expected_failures(project):
    write(
        project,
        f'{SPECS[0]}, xfail={{"interpret": ExpectedFailure(reason="known", jax="0.12")}}',
    )
    [record] = project.records(*QUICK, "--pallas-backend=interpret")
    assert (record["outcome"], record["script"]) == ("xfailed", "")
    assert not (project.path / "pallas-failures").exists()


def test_under_xdist(project):
    write(project, *SPECS[:2])
    quick = (*QUICK, "--pallas-backend=interpret")
    records = project.records("-n2", *quick, spawn=True)
    names = [Path(record["script"]).name for record in records]
    assert names == ["off-forward-interpret.py", "off_gradient-gradient-interpret.py"]
    assert all(Path(record["script"]).is_file() for record in records)


OWN = """
    import os
    import pytest
    from hypothesis import given, strategies as st
    from kernels import *
    import numpy as np

    X = np.ones((8, 128), np.float32)

    def test_closure(pallas_check):
        amount = 0 if "MENDED" in os.environ else 1

        def kernel(x, y):
            return add(x, y) + (0 if "MENDED" in os.environ else amount)

        pallas_check(kernel, X, X, reference=lambda x, y: x + y)

    @given(n=st.sampled_from([128, 256]))
    def test_drawn(pallas_check, n):
        pallas_check(add_off, X[:, :n], X[:, :n], reference=reference)

    def test_opaque(pallas_check):
        class Kernel:
            def __call__(self, x, y):
                return add_off(x, y)

        pallas_check(Kernel(), X, X, reference=reference)
"""


def test_of_tests_of_ones_own(project, tmp_path):
    project.write(test_own=OWN)
    records = project.records("--pallas-backend=interpret")
    scripts = [Path(record["script"]) for record in records]
    assert [path.name for path in scripts] == [
        "kernel-forward-interpret.py", "add_off-forward-interpret.py",
        "Kernel-forward-interpret.py",
    ]  # fmt: skip
    assert f"# test: {records[0]['test']}\n" in scripts[0].read_text()
    ended = run_bare(scripts, tmp_path)
    assert [each.status for each in ended] == [1, 1, 2], [each.output for each in ended]
    assert "the kernel: " in ended[2].output
    [mended] = run_bare(scripts[:1], tmp_path, {"MENDED": "1"})
    assert mended.status == 0, mended.output


def test_it_is_said_that_one_is_not_complete(project):
    project.write(test_own=OWN)
    [line] = printed(project.run("--pallas-backend=interpret", "-k", "opaque"))
    assert re.search(r"Kernel-forward-interpret\.py \(not complete, fill in the kernel: ", line)


def test_on_a_mesh(project, tmp_path):
    project.specs(
        'name="sharded", reference=reference_on_mesh, meshes=({"x": 4},), '
        "kernel=lambda x, y, mesh: add_sharded(x, y, mesh=mesh) + 1, "
        'inputs=lambda mesh: INPUTS, checks=("forward",)'
    )
    [record] = project.records(*QUICK, "--pallas-backend=tpu-interpret")
    script = Path(record["script"])
    assert script.name == "sharded-forward-tpu-interpret-x4.py"
    [ended] = run_bare([script], tmp_path)
    assert ended.status == 1, ended.output
    assert "elements are wrong" in ended.output


def test_other_checks_are_shown_by_forward_or_not_at_all(project, tmp_path):
    project.write(
        conftest="""
        from pytest_pallas import Check
        from pytest_pallas.checks.trial import run
        from pytest_pallas.errors import MismatchError

        def refuse(trial):
            raise MismatchError("not liked")

        def pytest_pallas_checks(config):
            return [Check(name="liking", asks="?", run=refuse, needs=lambda spec: None)]
        """
    )
    write(project, 'name="off", kernel=off', 'name="add", kernel=add')
    records = project.records(*QUICK, "--pallas-backend=interpret", "--pallas-checks=liking")
    off, right = records
    text = Path(off["script"]).read_text()
    assert "# liking needs the plugin; this script asks forward" in text
    [ended] = run_bare([Path(off["script"])], tmp_path)
    assert ended.status == 1, ended.output
    assert (right["outcome"], right["script"]) == ("failed", "")
