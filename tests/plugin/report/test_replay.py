"""The command that a failure prints runs the failing example again."""

from __future__ import annotations

import os
import shlex

import pytest
from pallas_test_support.forked_python import run_python

#: A kernel that is wrong for one width only, and says to a file what it was asked.
KERNEL = """
import jax

def picky(x, y):
    with open("widths.txt", "a") as file:
        file.write(f"{x.shape[1]}\\n")
    return (add_off if x.shape[1] == 384 else add)(x, y)

INPUTS = pst.arrays(
    "m n, m n", dtype="float32", dims={"m": [8, 16], "n": [128, 256, 384, 512, 640]}
)
"""


def replay_of(result: pytest.RunResult) -> list[str]:
    """The arguments of the one command that a run printed."""
    marks = ("  replay    ", "replay: ")
    found = [line for line in result.outlines if line.startswith(marks)]
    assert len(found) == 1
    words = shlex.split(found[0].strip().removeprefix("replay:").removeprefix("replay"))
    assert words[0] == "pytest"
    for own in (["-p", "no:jaxtyping"], ["-o", "pallas_isolate=never"]):  # of ``Project.options``
        if own[1] in words:
            at = words.index(own[1])
            del words[at - 1 : at + 1]
    return words[1:]


def widths(project) -> set[str]:
    path = project.path / "widths.txt"
    found = set(path.read_text().split())
    path.unlink()
    return found


def forget(project) -> None:
    """As on another machine, that has no example database."""
    import shutil

    shutil.rmtree(project.path / ".hypothesis", ignore_errors=True)


@pytest.mark.parametrize("extra", [(), ("--pallas-seed=3",), ("-n1",)], ids=["plain", "seed", "n1"])
def test_of_a_spec(project, extra):
    project.specs('name="picky", kernel=picky, checks=("forward",)')
    text = (project.path / "specs.py").read_text()
    (project.path / "specs.py").write_text(text.replace("SPEC_0", f"{KERNEL}\nSPEC_0"))
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=interpret", "--pallas-max-examples=30", *extra
    )
    result.assert_outcomes(failed=1)
    assert {"384", "128"} < widths(project)
    command = replay_of(result)
    forget(project)
    again = project.run(*command)
    again.assert_outcomes(failed=1)
    assert widths(project) == {"384"}
    assert "picky: forward on interpret is wrong" in again.stdout.str()
    assert replay_of(again) == command
    # When the kernel is mended, the example passes.
    (project.path / "kernels.py").write_text(
        (project.path / "kernels.py").read_text().replace("+ y_ref[...] + 1", "+ y_ref[...]")
    )
    project.run(*command).assert_outcomes(passed=1)
    assert widths(project) == {"384"}


def test_of_a_spec_on_a_mesh(project):
    project.specs(
        'name="sharded", reference=reference_on_mesh, meshes=({"x": 2}, {"x": 4}), '
        "kernel=lambda x, y, mesh: add_sharded(x, y, mesh=mesh) + (mesh.size == 4), "
        "inputs=lambda mesh: INPUTS"
    )
    result = project.run(
        "--pallas-suite=specs", "--pallas-backend=tpu-interpret:v6e", "--pallas-max-examples=1",
        "--pallas-checks=forward",
    )  # fmt: skip
    result.assert_outcomes(failed=1, passed=1)
    command = replay_of(result)
    assert command[-1] == "specs.py::sharded-forward[tpu-interpret:v6e-x4]"
    forget(project)
    project.run(*command).assert_outcomes(failed=1)


def test_of_a_suite_in_a_test_module(project):
    project.specs('name="off", kernel=add_off, checks=("forward",)')
    project.write(test_kernels='from pytest_pallas import suite\n\ntest_all = suite("specs")')
    result = project.run("--pallas-backend=interpret", "--pallas-max-examples=2")
    command = replay_of(result)
    assert command[-1] == "test_kernels.py::test_all::off-forward[interpret]"
    forget(project)
    project.run(*command).assert_outcomes(failed=1)


OWN = """
    from hypothesis import given, settings, strategies as st
    from kernels import *
    from pytest_pallas import strategies as pst

    ARGS = pst.arrays(
        "m n, m n", dtype="float32", dims={"m": [8, 16], "n": [128, 256, 384, 512, 640]}
    )

    @given(args=ARGS)
    def test_picky(pallas_check, args):
        kernel = add_off if args[0].shape[1] == 384 else add
        pallas_check(kernel, *args, reference=reference)

    def test_plain(pallas_check):
        import numpy as np

        x = np.ones((8, 128), np.float32)
        pallas_check(add, x, x, reference=reference)
"""


def test_of_a_test_of_ones_own(project):
    project.write(test_own=OWN)
    result = project.run(
        "--pallas-backend=tpu-interpret:v5e", "--pallas-max-examples=20", "--pallas-seed=4"
    )
    result.assert_outcomes(failed=1, passed=1)
    command = replay_of(result)
    assert command == [
        "--pallas-seed=4", "--pallas-backend=tpu-interpret:v5e", "--pallas-max-examples=20",
        "test_own.py::test_picky[tpu-interpret:v5e]",
    ]  # fmt: skip
    forget(project)
    again = project.run(*command)
    again.assert_outcomes(failed=1)
    drawn = [line for line in result.outlines if "args=Drawn(" in line]
    assert drawn
    assert [line for line in again.outlines if "args=Drawn(" in line] == drawn


#: A test of one's own in a folder, whose conftest.py adds an option.
IN_A_FOLDER = """
    import numpy as np
    from kernels import add_off, reference

    def test_off(pallas_check, width):
        x = np.ones((8, width), np.float32)
        pallas_check(add_off, x, x, reference=reference)
"""
WIDTHS = """
    def pytest_addoption(parser):
        parser.addoption("--width", type=int, action="append")

    def pytest_generate_tests(metafunc):
        metafunc.parametrize("width", metafunc.config.getoption("--width") or [128])
"""


@pytest.fixture
def in_a_folder(project):
    """A project with a test in the folder "tests/a b", and an ini file elsewhere."""
    folder = project.path / "tests" / "a b"
    folder.mkdir(parents=True)
    project.write(**{"tests/a b/test_off": IN_A_FOLDER, "tests/conftest": WIDTHS})
    (project.path / "other.ini").write_text("[pytest]\npallas_backend = tpu-sim\n")
    return project


@pytest.mark.parametrize("started", [".", "tests", "tests/a b", ".."])
def test_where_pytest_was_started(in_a_folder, monkeypatch, started):
    project = in_a_folder
    root = project.path
    folder = (root / started).resolve()
    monkeypatch.syspath_prepend(root)
    monkeypatch.chdir(folder)
    test = os.path.relpath(root / "tests", folder)
    result = project.run(
        "--pallas-backend=tpu-sim", "-c", os.path.relpath(root / "other.ini", folder), test,
        f"--rootdir={root}", "-qs", "--width", "256", "--pallas-timeout=50", "-k", "test_off",
    )  # fmt: skip
    result.assert_outcomes(failed=1)
    command = replay_of(result)
    path = os.path.relpath(root / "tests/a b/test_off.py", folder)
    assert command[-1] == f"{path}::test_off[256-tpu-sim]"
    assert {"-c", "--width", "--pallas-timeout=50"} < {*command}
    assert not {"-qs", "-k"} & {*command}
    project.run(*command).assert_outcomes(failed=1)


def test_beside_a_configuration_of_its_own(in_a_folder, monkeypatch):
    """The test's folder has a configuration, which a run from above does not read."""
    project = in_a_folder
    monkeypatch.syspath_prepend(project.path)
    (project.path / "tests/a b/pytest.ini").write_text("[pytest]\npallas_backend = nonsense\n")
    project.ini(pallas_backend="tpu-sim")
    command = replay_of(project.run())
    assert {"--config-file=pytest.ini", "--rootdir=."} < {*command}
    project.run(*command).assert_outcomes(failed=1)


def test_of_a_hook_and_of_a_suite_outside(project, monkeypatch):
    """No path selects them, or pytest would not read the conftest.py with the hook."""
    outside = project.path / "lib"
    inside = project.path / "mine"
    outside.mkdir()
    inside.mkdir()
    project.specs(
        'name="off", kernel=add_off, checks=("forward",)',
        'name="one_off", kernel=add_off, checks=("forward",)',
        name="lib/far_specs",
    )
    project.write(
        **{
            "mine/conftest": """
                import dataclasses

                def pytest_pallas_specs(config):
                    from far_specs import SPEC_0
                    return [dataclasses.replace(SPEC_0, name="hooked")]
            """
        }
    )
    monkeypatch.syspath_prepend(project.path)
    monkeypatch.syspath_prepend(outside)
    monkeypatch.chdir(inside)
    options = "--pallas-backend=interpret", "--pallas-max-examples=2", "--pallas-suite=far_specs"
    for name, other in (("off", "hooked"), ("hooked", "off")):
        result = project.run(*options, "-k", f"{name} and not one")
        result.assert_outcomes(failed=1)
        command = replay_of(result)
        test = f"{name}-forward[interpret]"
        assert command[-2:] == ["-k", test]
        file = "../lib/far_specs.py" if name == "off" else "pytest_pallas_specs"
        assert f"FAILED {file}::{test} " in result.stdout.str()
        again = project.run(*command)
        again.assert_outcomes(failed=1)
        assert other not in again.stdout.str()


@pytest.mark.parametrize("tb", ["auto", "short", "native"])
def test_of_a_test_that_shows_no_captured_output(project, tb):
    project.write(
        test_off="""
        from kernels import *

        def test_plain(pallas_check):
            x = jnp.ones((8, 128))
            print("captured")
            pallas_check(add_off, x, x, reference=reference)
        """
    )
    for option in ("--show-capture=no", "--show-capture=stderr"):
        result = project.run(option, f"--tb={tb}", "--pallas-backend=interpret")
        result.assert_outcomes(failed=1)
        assert "captured" not in result.outlines
        assert replay_of(result)[-1] == "test_off.py::test_plain[interpret]"


def test_what_only_python_m_pytest_imports(in_a_folder):
    """``pytest`` alone does not search the folder where it was started."""
    project = in_a_folder
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    words = ("-m", "pytest", "--pallas-isolate=never", "--pallas-backend=tpu-sim", "tests")
    done = run_python(*words, cwd=project.path, env=environment)
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("replay: "))
    assert line.startswith("replay: pytest -o pythonpath=. ")


def test_with_devices_and_checks(project):
    """Options without which the item would not exist, or be another."""
    project.specs(
        'name="sharded", kernel=lambda x, y, mesh: add_sharded(x, y, mesh=mesh) + 1, '
        'reference=reference_on_mesh, meshes=({"x": 2},), inputs=lambda mesh: INPUTS'
    )
    result = project.spawn(
        "--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=1",
        "--pallas-checks=forward", "--pallas-devices=2",
    )  # fmt: skip
    command = replay_of(result)
    assert "--pallas-devices=2" in command
    project.spawn(*command).assert_outcomes(failed=1)
