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
from jax.experimental import pallas as pl
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

def endless(x, y):
    while not MENDED:
        pass
    return add(x, y)

def low(x_ref, o_ref):
    @pl.when(pl.program_id(0) == 0)
    def _clear():
        o_ref[...] = jnp.full_like(o_ref, 1e9)

    for row in range(8):
        here = x_ref[row : row + 1, :]
        if MENDED:
            here = jnp.where(pl.program_id(0) * 8 + row < 12, here, 1e9)
        o_ref[...] = jnp.where(here < o_ref[...], here, o_ref[...])

def pads(x):
    return pl.pallas_call(
        low,
        out_shape=jax.ShapeDtypeStruct((1, 128), x.dtype),
        grid=(2,),
        in_specs=[pl.BlockSpec((8, 128), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((1, 128), lambda i: (0, 0)),
    )(x)

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

PADS = (
    'name="pads", kernel=pads, inputs=pst.arrays("m n", dtype="float32", dims={"m": [12], '
    '"n": [128]}), reference=lambda x: x.min(0, keepdims=True), checks=("padding",)'
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


def test_scripts_of_simulated_failures(project, tmp_path):
    """They need the simulator, which needs neither pytest nor hypothesis."""
    write(project, *SPECS, PADS)
    records = project.records(*QUICK)
    scripts = sorted({Path(record["script"]) for record in records if record["script"]})
    assert [path.name for path in scripts] == [
        "off-forward-tpu-sim.py",
        "off_dtype-forward-tpu-sim.py",
        "off_gradient-gradient-tpu-sim.py",
        "off_options-forward-tpu-sim.py",
        "off_vmap-vmap-tpu-sim.py",
        "pads-padding-tpu-sim.py",
        "raises-forward-tpu-sim.py",
    ]
    text = scripts[0].read_text()
    assert "pytest_pallas.simulator, which needs neither pytest nor\nhypothesis" in text
    for ended, path in zip(run_bare(scripts, tmp_path, own=True), scripts, strict=True):
        assert ended.status == 1, ended.output
        words = "of the reference: float32"
        if "raises" in path.name:
            words = "the kernel raised"
        elif "pads" in path.name:
            words = "with the lowest finite number in memory that nobody has written"
        assert words in ended.output
    for ended in run_bare(scripts, tmp_path, {"MENDED": "1"}, own=True):
        assert ended.status == 0, ended.output
        assert ended.output.endswith("no failure\n")


COPIES = """
import functools
import os

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

MENDED = "MENDED" in os.environ

def copy(x, y, *, early):
    def body(x_ref, o_ref, buffer, arrived):
        copied = pltpu.make_async_copy(x_ref, buffer, arrived)
        copied.start()
        if MENDED or not early:
            copied.wait()
        o_ref[...] = buffer[...]
        if not MENDED:
            copied.wait() if early else copied.start()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        scratch_shapes=[pltpu.VMEM(x.shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(x) + y
"""


def test_scripts_of_simulated_races_and_missing_waits(project, tmp_path):
    write(
        project,
        'name="early", kernel=functools.partial(copy, early=True), checks=("forward",)',
        'name="unwaited", kernel=functools.partial(copy, early=False), checks=("forward",)',
        kernels=COPIES,
    )
    scripts = [Path(record["script"]) for record in project.records(*QUICK)]
    for mended in (False, True):
        environment = {"MENDED": "1"} if mended else {}
        for ended, error in zip(
            run_bare(scripts, tmp_path, environment, own=True), ("Race", "Dma"), strict=True
        ):
            assert ended.status == (0 if mended else 1), ended.output
            assert (f"the kernel raised\n  {error}Error: " in ended.output) is not mended


def test_a_simulated_kernel_that_does_not_end(project, tmp_path):
    write(project, 'name="endless", kernel=endless, checks=("forward",)')
    [record] = project.records(*QUICK, "--pallas-timeout=2")
    assert "still not traced and simulated after 2 s" in record["message"]
    assert "specs.py:" in record["message"]
    script = Path(record["script"])
    [ended] = run_bare([script], tmp_path, own=True)
    assert (ended.status, "did not finish within 2 s" in ended.output) == (1, True), ended.output
    [ended] = run_bare([script], tmp_path, {"MENDED": "1"}, own=True)
    assert ended.status == 0, ended.output


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
        from pytest_pallas.checks.context import run
        from pytest_pallas.errors import MismatchError

        def refuse(context):
            raise MismatchError("not liked")

        def pytest_pallas_checks(config):
            return [Check(name="liking", asks="?", run=refuse)]
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
