"""The commands ``pytest-pallas simulate`` and ``analyze``."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from pallas_sim.errors import OptionError
from pytest_pallas.__main__ import main
from pytest_pallas.compile import libtpu
from pytest_pallas.examine import parse_inputs

KERNELS = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def double(x, *, block=8):
    def body(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    spec = pl.BlockSpec((block, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body, out_shape=x, grid=(x.shape[0] // block,), in_specs=[spec], out_specs=spec
    )(x)


def unfinished(x):
    def body(x_ref, o_ref, semaphore):
        copy = pltpu.make_async_copy(x_ref, o_ref, semaphore)
        copy.start()

    return pl.pallas_call(body, out_shape=x, scratch_shapes=[pltpu.SemaphoreType.DMA])(x)


def devices(x, *, mesh):
    return double(x) * len(mesh.devices)


def refuses(x):
    raise ValueError("only even sizes")
"""


@pytest.fixture(autouse=True)
def kernels(tmp_path, monkeypatch):
    """The path of a file with kernels, with ``sys`` as it was afterwards."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "examined_kernels", raising=False)
    path = tmp_path / "examined_kernels.py"
    path.write_text(KERNELS)
    yield path
    sys.modules.pop("examined_kernels", None)


@pytest.fixture
def ask(kernels, tmp_path):
    """Run a command on a function of the file; returns the exit status and the JSON."""

    def asked(command, function, *words):
        file = tmp_path / "out.json"
        status = main([command, f"{kernels}:{function}", f"--json={file}", *words])
        return status, json.loads(file.read_text())

    return asked


def test_a_right_call_passes_with_its_outputs(ask):
    status, report = ask("simulate", "double", "--inputs=int32[8, 128] , float32[]")
    assert (status, report["outcome"], report["error_type"]) == (1, "failed", "TypeError")
    status, report = ask("simulate", "double", "--inputs=int32[8, 128]")
    assert (status, report["outcome"], report["findings"]) == (0, "passed", [])
    drawn = report["inputs"][0]
    assert report["outputs"] == [
        {"where": "", **drawn, "min": 2 * drawn["min"], "max": 2 * drawn["max"]}
    ]


def test_findings_have_their_lines(ask, kernels, capsys):
    status, report = ask("simulate", "unfinished", "--inputs=float32[8, 128]", "--target=v5e")
    assert (status, report["outcome"]) == (1, "failed")
    line = 1 + KERNELS.splitlines().index("        copy.start()")
    assert {finding["line"] for finding in report["findings"]} == {f"{kernels}:{line}"}
    assert main(["simulate", f"{kernels}:unfinished", "--inputs=float32[8, 128]"]) == 1
    assert f"examined_kernels.py:{line}" in capsys.readouterr().out


def test_an_error_of_the_kernel_has_its_line(ask, kernels):
    status, report = ask("simulate", "refuses", "--inputs=float32[8]")
    line = 1 + next(n for n, text in enumerate(KERNELS.splitlines()) if "only even" in text)
    assert status == 1
    assert (report["error_type"], report["raised_at"]) == ("ValueError", f"{kernels}:{line}")


def test_options_and_a_mesh(ask):
    _, report = ask("simulate", "double", "--inputs=float32[16, 128]", '--options={"block": 16}')
    assert report["outcome"] == "passed"
    _, report = ask("simulate", "devices", "--inputs=int32[8, 128]", '--mesh={"x": 4}')
    assert report["outputs"][0]["max"] == 8 * report["inputs"][0]["max"]


def test_values_are_given_or_drawn():
    first, second, third, scalar = parse_inputs(
        "float32[2, 3],int32[3]= [3, 3,2] , bfloat16[4]\n, int32[] = 7", seed=1
    )
    assert (first.dtype, first.shape) == (np.float32, (2, 3))
    assert second.tolist() == [3, 3, 2]
    assert (str(third.dtype), third.shape) == ("bfloat16", (4,))
    assert (scalar.shape, int(scalar)) == ((), 7)
    [again] = parse_inputs("float32[2, 3]", seed=1)
    assert (again == first).all()
    assert [*parse_inputs("", seed=0)] == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("8, 128", "'8, 128' is no array; write dtype[shape]"),
        ("float32[8, 128] float32[8]", "'float32[8, 128] float32[8]' is no array"),
        ("float42[8]", "'float42' of float42[8] is no dtype"),
        ("int32[3] = 3, 3", "the values of int32[3] have the shape ()"),
        ("int32[3] = [3, 3", "the values of int32[3] are no JSON list"),
        ("int32[2] = [[1], 2]", "the values of int32[2] are no JSON list"),
        ("int32[1] = [3] 4", "a comma must follow the values of int32[1]"),
    ],
)
def test_wrong_inputs(text, message):
    with pytest.raises(OptionError, match="--inputs: ") as error:
        list(parse_inputs(text, seed=0))
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--options=[1]"], "--options=[1]: give a JSON object"),
        (["--mesh={"], "--mesh={: give a JSON object"),
        (["--target=v99"], "v99"),
        (["--inputs=float32[8, 128]", "--json=/nowhere/out.json"], "cannot be written"),
    ],
)
@pytest.mark.parametrize("command", ["simulate", "analyze"])
def test_wrong_options(kernels, capsys, command, words, message):
    assert main([command, f"{kernels}:double", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_witness_that_is_none(kernels, capsys):
    words = ["--inputs=float32[8, 128]", "--witness=nonsense"]
    assert main(["simulate", f"{kernels}:double", *words]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_no_such_file_or_function(tmp_path, kernels, capsys):
    assert main(["simulate", f"{tmp_path}/none.py:f"]) == 2
    assert capsys.readouterr().err == f"pytest-pallas: there is no file {tmp_path}/none.py\n"
    assert main(["analyze", f"{kernels}:doubel"]) == 2
    assert "did you mean double?" in capsys.readouterr().err


def test_the_grid_is_analyzed(ask, kernels, capsys):
    status, report = ask("analyze", "double", "--inputs=float32[20, 128]")
    assert (status, report["outcome"]) == (1, "failed")
    assert report["kernels"][0]["grid"] == [2]
    assert [finding["kind"] for finding in report["findings"]] == ["never-written"]
    assert main(["analyze", f"{kernels}:double", "--inputs=float32[16, 128]"]) == 0
    assert "writes float32[16, 128] in blocks (8, 128): 2 of 2" in capsys.readouterr().out
    status, report = ask("analyze", "refuses", "--inputs=float32[16, 128]")
    assert (status, report["error_type"]) == (1, "KernelError")


@pytest.mark.skipif(libtpu.missing() is not None, reason=str(libtpu.missing()))
def test_the_compiler_says_what_it_costs(ask):
    status, report = ask("analyze", "double", "--inputs=float32[16, 128]", "--compile")
    assert (status, report["compiled"]["status"]) == (0, "compiled")
    assert report["compiled"]["bundles"] > 0


def test_a_missing_compiler_is_a_wrong_option(kernels, capsys, monkeypatch):
    monkeypatch.setattr(libtpu, "missing", lambda: "pip install it")
    words = ["--inputs=float32[16, 128]", "--compile"]
    assert main(["analyze", f"{kernels}:double", *words]) == 2
    assert "pip install it" in capsys.readouterr().err
