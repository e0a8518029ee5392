"""The command that a failure prints runs the failing example again."""

from __future__ import annotations

import shlex

import pytest

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
