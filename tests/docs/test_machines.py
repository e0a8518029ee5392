"""docs/machines.md: processes see a GPU each, and its commands say what a machine does not have."""

import re
import shlex
from pathlib import Path

import pytest

PAGE = "docs/machines.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text()
COMMANDS = [
    line
    for block in re.findall(r"```bash\n(.*?)```", TEXT, re.DOTALL)
    for line in block.splitlines()
    if "pytest " in line and "pip " not in line
]

KERNEL = """
import jax
from jax.experimental import pallas as pl

def double(x):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * 2
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""

SPEC = """
from mykernels.double import double
from pytest_pallas import KernelSpec, strategies as pst

SPEC = KernelSpec(
    name="double", kernel=double, reference=lambda x: x * 2, vmappable=False,
    inputs=pst.arrays("m n", dims={"m": [8], "n": [128, 256]}),
)
"""

SEEN = """
import os

def test_seen():
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"])

def test_seen_too():
    print("sees", os.environ["CUDA_VISIBLE_DEVICES"])
"""


@pytest.fixture
def project(pytester):
    package = pytester.mkpydir("mykernels")
    (package / "double.py").write_text(KERNEL)
    (package / "double_spec.py").write_text(SPEC)
    tests = pytester.mkdir("tests")
    (tests / "test_meshes.py").write_text("def test_mesh(pallas_mesh):\n    pallas_mesh(x=4)\n")
    pytester.syspathinsert()
    return pytester


def options_of(command):
    words = shlex.split(re.sub(r"-n \d+ ", "", command))
    return words[words.index("pytest") + 1 :]


@pytest.mark.parametrize("command", [each for each in COMMANDS if "=tpu" in each or "=gpu" in each])
def test_a_machine_without_the_chip_says_so(project, command):
    [backend] = re.findall(r"--pallas-backend=(?:tpu-sim,)?(\w+)", command)
    result = project.runpytest_inprocess("-p", "no:cacheprovider", *options_of(command))
    assert result.ret == 4
    assert f"backend '{backend}" in result.stderr.str()
    assert "is not available" in result.stderr.str()


def test_goldens_go_from_a_recording_to_a_replay(project):
    recording, replaying = [each for each in COMMANDS if "--pallas-golden" in each]
    here = [option.replace("=tpu", "=tpu-sim") for option in options_of(recording)]
    recorded = project.runpytest_inprocess("-p", "no:cacheprovider", *here)
    assert recorded.ret == 0
    replayed = project.runpytest_inprocess("-p", "no:cacheprovider", *options_of(replaying))
    assert replayed.ret == 0
    assert re.search(r"goldens in .*: \d+ compared", replayed.stdout.str())


def test_every_process_sees_another_gpu(pytester, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5,6,7")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")  # as if there were some
    pytester.makepyfile(test_seen=SEEN)
    result = pytester.runpytest_subprocess("-n", "2", "-rP", "--pallas-isolate=never")
    result.assert_outcomes(passed=2)
    assert set(re.findall(r"^sees (\d)$", result.stdout.str(), re.MULTILINE)) == {"0", "1"}
    [header] = re.findall(r"```text\n(pallas: each of .*)\n```", TEXT)
    assert header.replace("each of 8", "each of 2") in result.outlines


def test_every_command_is_run():
    assert len(COMMANDS) == 8
    assert all("--pallas-backend" in each or "--pallas-golden" in each for each in COMMANDS)
