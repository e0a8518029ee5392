"""The script that a failure writes: where it is, and that it repeats the failure."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from pallas_test_support.failure_scripts import message_of, repeat, run_script, run_scripts

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


def test_scripts_repeat_the_failure_until_it_is_mended(project):
    write(project, *SPECS, PADS)
    records = project.records(*QUICK)
    assert {Path(record["script"]).parent for record in records} == {
        project.path / "pallas-failures"
    }
    assert sorted(Path(record["script"]).name for record in records) == [
        "off-forward-tpu-sim.py",
        "off_dtype-forward-tpu-sim.py",
        "off_gradient-gradient-tpu-sim.py",
        "off_options-forward-tpu-sim.py",
        "off_vmap-vmap-tpu-sim.py",
        "pads-padding-tpu-sim.py",
        "raises-forward-tpu-sim.py",
    ]
    repeat(records, {"MENDED": "1"})


def test_scripts_of_interpreters(project):
    write(project, *SPECS[:2])
    records = project.records(*QUICK, "--pallas-backend=interpret,tpu-interpret:v5e")
    assert sorted({Path(record["script"]).name for record in records}) == [
        f"{name}-{backend}.py"
        for name in ("off-forward", "off_gradient-gradient")
        for backend in ("interpret", "tpu-interpret-v5e")
    ]
    repeat(records[1:], {})
    ended = run_script(Path(records[0]["script"]))
    assert (ended.status, message_of(records[0]) in ended.output) == (1, True), ended.output


def test_a_script_is_short(project):
    write(project, SPECS[0], PADS, SPECS[1])
    records = project.records(*QUICK)
    for record in records:
        lines = Path(record["script"]).read_text().splitlines()
        assert len(lines) < 60
        assert "This script repeats the failure. It needs pytest-pallas, and no" in lines[2]


#: JAX's own calls run on an accelerator, where there is one.
ON_CPU = "import jax\n\njax.config.update('jax_platforms', 'cpu')\n"


def test_a_script_has_the_comparison_for_who_has_no_pytest_pallas(project):
    write(project, SPECS[0], SPECS[5], kernels=KERNELS)
    scripts = [Path(r["script"]) for r in project.records(*QUICK)]
    for script in scripts:
        text = script.read_text()
        before, _, comparison = text.partition("# For a bug report to JAX: ")
        plain = re.sub(r"^# ?", "", comparison.partition("\n")[2], flags=re.MULTILINE)
        call = re.compile(r"^pytest_pallas\.check\((?:[^\n]*\)|.*?^\))$", re.MULTILINE | re.DOTALL)
        script.write_text(f"{ON_CPU}{call.sub('', before)}\n{plain}")
    off, options = run_scripts(sorted(scripts))
    assert (off.status, off.output) == (0, "no failure\nlargest difference 1.0\n")
    assert (options.status, "largest difference 8.0" in options.output) == (0, True), options.output


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


def test_scripts_of_races_and_missing_waits(project):
    write(
        project,
        'name="early", kernel=functools.partial(copy, early=True), checks=("forward",)',
        'name="early_again", kernel=functools.partial(copy, early=True), checks=("races",)',
        'name="unwaited", kernel=functools.partial(copy, early=False), checks=("dma",)',
        kernels=COPIES,
    )
    records = project.records(*QUICK)
    assert [record["check"] for record in records] == ["forward", "races", "dma"]
    repeat(records, {"MENDED": "1"})


#: Each is wrong for one sanitizer.
SANITIZED = """
import functools
import os

from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

MENDED = "MENDED" in os.environ

def half(x, y):
    def body(x_ref, o_ref):
        rows = 8 if MENDED else 4
        o_ref[:rows, :] = x_ref[:rows, :]

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x) + y

def forgotten(x, y):
    block = pl.BlockSpec((4, 128), lambda i: (i if MENDED else 0, 0))

    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...]

    return pl.pallas_call(
        body, out_shape=jax.ShapeDtypeStruct((8, 128), x.dtype), grid=(2,),
        in_specs=[block], out_specs=block,
    )(x[:, :128]) + y[:, :128]

def waits(x, y):
    def body(x_ref, o_ref, ready):
        if MENDED:
            pl.semaphore_signal(ready)
        pl.semaphore_wait(ready)
        o_ref[...] = x_ref[...]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
    )(x) + y
"""


def test_scripts_of_sanitizers_and_of_the_grid(project):
    write(
        project,
        'name="half", kernel=half, checks=("memory",)',
        'name="forgotten", kernel=forgotten, checks=("grid",), backends=("tpu-sim",), '
        "reference=lambda x, y: x[:, :128] + y[:, :128]",
        'name="waits", kernel=waits, checks=("deadlock",)',
        kernels=SANITIZED,
    )
    records = project.records(*QUICK)
    assert {record["check"] for record in records} == {"grid", "memory", "deadlock"}
    repeat(records, {"MENDED": "1"})


def test_the_watch_that_a_run_did_not_keep_is_not_kept_by_its_script(project):
    write(
        project,
        'name="early", kernel=functools.partial(copy, early=True), checks=("forward",), '
        "reference=lambda x, y: x - y",
        kernels=COPIES,
    )
    [record] = project.records(*QUICK, "--pallas-sanitize=none")
    assert "early: forward on tpu-sim is wrong" in record["message"]
    assert 'sanitize="none"' in Path(record["script"]).read_text()
    repeat([record], {})


def test_a_simulated_kernel_that_does_not_end(project):
    write(project, 'name="endless", kernel=endless, checks=("forward",)')
    [record] = project.records(*QUICK, "--pallas-timeout=1")
    assert "still not traced and simulated after 1 s" in record["message"]
    assert "specs.py:" in record["message"]
    repeat([record], {})


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


def test_of_tests_of_ones_own(project):
    project.write(test_own=OWN)
    records = project.records("--pallas-backend=interpret")
    scripts = [Path(record["script"]) for record in records]
    assert [path.name for path in scripts] == [
        "kernel-forward-interpret.py", "add_off-forward-interpret.py",
        "Kernel-forward-interpret.py",
    ]  # fmt: skip
    assert f"# test: {records[0]['test']}\n" in scripts[0].read_text()
    repeat(records[:2], {})
    [mended] = run_scripts(scripts[:1], {"MENDED": "1"})
    assert (mended.status, mended.output) == (0, "no failure\n")
    [opaque] = run_scripts(scripts[2:])
    assert opaque.status == 1
    assert opaque.output.startswith("fill in the kernel: ")


def test_it_is_said_that_one_is_not_complete(project):
    project.write(test_own=OWN)
    [line] = printed(project.run("--pallas-backend=interpret", "-k", "opaque"))
    assert re.search(r"Kernel-forward-interpret\.py \(not complete, fill in the kernel: ", line)


def test_on_a_mesh(project):
    project.specs(
        'name="sharded", reference=reference_on_mesh, meshes=({"x": 4},), '
        "kernel=lambda x, y, mesh: add_sharded(x, y, mesh=mesh) + 1, "
        'inputs=lambda mesh: INPUTS, checks=("forward",)'
    )
    records = project.records(*QUICK, "--pallas-backend=tpu-sim,tpu-interpret")
    assert [Path(record["script"]).name for record in records] == [
        "sharded-forward-tpu-sim-x4.py", "sharded-forward-tpu-interpret-x4.py",
    ]  # fmt: skip
    repeat(records, {})


def test_checks_and_backends_of_a_project(project):
    project.write(
        conftest="""
        import dataclasses

        from pytest_pallas import Check, Family, declare_check
        from pytest_pallas.checks.context import run
        from pytest_pallas import MismatchError

        def refuse(context):
            raise MismatchError("not liked")

        @declare_check("awe", asks="?")
        def awe(context):
            raise MismatchError("no awe")

        def pytest_pallas_checks(config):
            return [Check(name="liking", asks="?", run=refuse), awe]

        def plain(target):
            from pytest_pallas.backends.interpreters import Interpreter

            return Interpreter("plain", "any", target)

        def pytest_pallas_backends(config):
            return [Family(name="plain", make=plain, kind="interpreting")]
        """,
    )
    write(project, 'name="add", kernel=add, backends=("interpret", "plain")')
    of_checks = project.records(*QUICK, "--pallas-backend=interpret", "--pallas-checks=liking,awe")
    assert [record["check"] for record in of_checks] == ["liking", "awe"]
    repeat(of_checks, {})
    [line] = printed(project.run(*QUICK, "--pallas-backend=plain", "--pallas-checks=liking"))
    assert line == "none: the backend plain is one of the project, which a script lacks"
