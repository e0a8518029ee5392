"""The server of ``pytest-pallas mcp``, asked by the client of its SDK."""

from __future__ import annotations

import json
import sys
import threading
import time

import anyio
import pytest
from mcp import Client, StdioServerParameters

from pytest_pallas import mcp_server
from pytest_pallas.__main__ import main
from pytest_pallas.mcp_server import TOOLS, call_tool, command_line, make_server
from pytest_pallas.options import TABLE

TOOL = {tool.name: tool for tool in TOOLS}

KERNELS = """
import os
import time

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu


def double(x):
    def body(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]

    return pl.pallas_call(body, out_shape=x)(x)


def copied(x):
    def body(x_ref, o_ref, semaphore):
        copy = pltpu.make_async_copy(x_ref, o_ref, semaphore)
        copy.start()
        copy.wait()

    return pl.pallas_call(body, out_shape=x, scratch_shapes=[pltpu.SemaphoreType.DMA])(x)


def hang():
    time.sleep(1000)


def crash():
    print("last words", flush=True)
    os.abort()


def leave():
    raise SystemExit(0)
"""

SPEC = """
from pytest_pallas import KernelSpec, strategies as pst
from served_kernels import double

SPEC = KernelSpec(
    name="double", kernel=double, reference=lambda x: 2 * x, inputs=pst.arrays("m n"),
    checks=["forward"],
)
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    folder = tmp_path_factory.mktemp("project")
    (folder / "served_kernels.py").write_text(KERNELS)
    (folder / "double_spec.py").write_text(SPEC)
    (folder / "copied_spec.py").write_text(SPEC.replace("double", "copied").replace("2 * x", "x"))
    (folder / "served_reference.py").write_text("def double(x):\n    return 2 * x\n")
    (folder / "pytest.ini").write_text("[pytest]\n")
    return folder


def ask(name, arguments, target=None):
    """Call a tool; returns its answer, and whether that is an error."""

    async def call():
        async with Client(target or make_server()) as client:
            return await client.call_tool(name, arguments)

    result = anyio.run(call)
    [content] = result.content
    assert json.loads(content.text) == result.structured_content
    return result.structured_content, result.is_error


def simulate(project, function, **rest):
    return ask("simulate", {"kernel": f"{project}/served_kernels.py:{function}", **rest})


def check(folder, **rest):
    arguments = {"folder": str(folder), "suite": ["double_spec"], "profile": "quick", **rest}
    return ask("check", arguments)


def test_the_tools_are_those_of_the_table():
    async def tools():
        async with Client(make_server()) as client:
            return (await client.list_tools()).tools

    listed = anyio.run(tools)
    assert [tool.name for tool in listed] == [tool.name for tool in TOOLS]
    for tool in listed:
        assert {"folder", "seconds"} < {*tool.input_schema["properties"]}
        assert all(entry["description"] for entry in tool.input_schema["properties"].values())


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.name)
def test_every_option_is_one_of_the_command(tool, capsys):
    if tool.command[0] == "pytest":
        known = ["-k", *(option.flag for option in TABLE)]
    else:
        with pytest.raises(SystemExit):
            main([*tool.command[1:], "--help"])
        known = capsys.readouterr().out
    options = [tool.json, *(option for p in tool.parameters if (option := p.option))]
    assert [option for option in options if option not in known] == []


def test_a_failure_is_enough_to_mend_the_kernel(project):
    answer, error = check(project)
    assert (answer["status"], answer["exit_status"], error) == ("passed", 0, False)
    assert answer["result"]["counts"]["passed"] == 1

    file = project / "served_kernels.py"
    file.write_text(KERNELS.replace("2 * x_ref", "3 * x_ref"))
    try:
        answer, error = check(project)
    finally:
        file.write_text(KERNELS)
    assert (answer["status"], answer["exit_status"], error) == ("failed", 1, False)
    [failure] = answer["result"]["failures"]
    assert failure["source"].startswith(f"{file}:")
    assert "output, float32[1, 1]: wrong in 1 of 1 element" in failure["message"]
    assert "output" not in answer

    # What runs is what is in the file now.
    answer, _ = check(project, replay=failure["example"])
    assert (answer["status"], answer["result"]["counts"]["passed"]) == ("passed", 1)


def test_a_test_without_a_kernel_has_its_output(tmp_path):
    (tmp_path / "test_other.py").write_text("def test_other():\n    assert 1 == 2\n")
    answer, error = ask("check", {"path": str(tmp_path / "test_other.py")})
    assert (answer["status"], error) == ("failed", False)
    assert "assert 1 == 2" in answer["output"]


def test_one_call_is_simulated_and_analyzed(project):
    answer, error = simulate(project, "double", inputs="int32[2] = [1, 2]")
    assert (answer["status"], error) == ("passed", False)
    assert answer["result"]["outputs"][0]["values"] == [2, 4]
    arguments = {
        "folder": str(project),
        "kernel": "served_kernels:double",
        "inputs": "float32[8, 128]",
    }
    answer, error = ask("analyze", arguments)
    assert (answer["status"], error) == ("passed", False)
    assert answer["result"]["kernels"][0]["kernel"] == "body"


def test_a_candidate_is_judged(project):
    arguments = {
        "kernel": f"{project}/served_kernels.py:double",
        "reference": f"{project}/served_reference.py:double",
        "inputs": "m n",
        "target": "tpu-sim:v6e",
    }
    answer, error = ask("verify", arguments)
    assert (answer["status"], error) == ("passed", False)
    assert answer["result"]["stages"]


def test_barriers_of_a_spec(project):
    arguments = {"folder": str(project), "spec": "copied_spec.py:SPEC", "examples": 1}
    answer, error = ask("barriers", arguments)
    assert (answer["status"], error) == ("passed", False)
    assert (answer["result"]["spec"], len(answer["result"]["rows"])) == ("copied", 1)


def test_what_ends_its_process_is_an_answer(project):
    answer, error = simulate(project, "hang", seconds=1)
    assert (answer["status"], error) == ("timed out", True)
    assert "hang exceeded its time limit of 1 s" in answer["message"]
    answer, error = simulate(project, "crash")
    assert (answer["status"], error) == ("crashed", True)
    assert "SIGABRT" in answer["message"]
    assert answer["output"].startswith("last words")
    answer, error = simulate(project, "leave")
    assert (answer["status"], answer["exit_status"], error) == ("no result", 0, True)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        (
            "nope",
            {},
            "there is no tool 'nope'; there is check, simulate, analyze, verify, barriers",
        ),
        ("simulate", {}, "simulate: 'kernel' is a required property"),
        ("check", {"sede": 1}, "check: Additional properties are not allowed ('sede' was"),
        ("check", {"seed": "1"}, "check: seed: '1' is not of type 'integer'"),
        ("check", {"folder": "/nowhere"}, "check: there is no folder /nowhere"),
        ("check", {"path": "--pdb"}, "check: path='--pdb' must not begin with -"),
        ("check", {"seconds": 0}, "check: seconds=0 must be positive"),
    ],
)
def test_wrong_arguments(name, arguments, message):
    answer, error = ask(name, arguments)
    assert (answer["status"], error) == ("usage error", True)
    assert message in answer["message"]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("simulate", {"kernel": "/nowhere/k.py:f"}, "there is no file /nowhere/k.py"),
        ("simulate", {"kernel": "k.py"}, "'k.py' names no function"),
        ("check", {"suite": ["nowhere"]}, "no module named 'nowhere'"),
        ("check", {"path": "nowhere.py"}, "file or directory not found: nowhere.py"),
    ],
)
def test_what_the_command_refuses(project, name, arguments, message):
    answer, error = ask(name, {"folder": str(project), **arguments})
    assert (answer["status"], error) == ("usage error", True)
    assert message in answer["output"]


def test_a_large_result_is_not_sent(project, monkeypatch):
    monkeypatch.setattr(mcp_server, "_LARGEST", 100)
    answer, error = simulate(project, "double", inputs="int32[2] = [1, 2]")
    assert (answer["status"], error) == ("no result", True)
    assert "more than 100: ask for less" in answer["message"]


def test_a_call_that_is_not_wanted_any_more_ends(project):
    stopping = threading.Event()
    threading.Timer(1, stopping.set).start()
    start = time.monotonic()
    _, error = call_tool(
        TOOL["simulate"], {"kernel": f"{project}/served_kernels.py:hang"}, stopping
    )
    assert error
    assert time.monotonic() - start < 30


def test_values_become_arguments():
    arguments = {"path": "tests", "suite": ["a", "b"], "seed": 3, "keyword": "not slow"}
    assert command_line(TOOL["check"], arguments) == [
        *("tests", "--pallas-suite=a,b", "--pallas-seed=3", "-k=not slow")
    ]
    arguments = {"kernel": "k:f", "options": {"block": 8}, "compile": True}
    assert command_line(TOOL["analyze"], arguments) == [
        *("analyze", "k:f", '--options={"block": 8}', "--compile")
    ]
    assert command_line(TOOL["analyze"], {"kernel": "k:f", "compile": False}) == ["analyze", "k:f"]


def test_over_stdio_the_server_outlives_a_crash(project):
    parameters = StdioServerParameters(
        command=sys.executable, args=["-m", "pytest_pallas", "mcp"], cwd=str(project)
    )

    async def call():
        async with Client(parameters) as client:
            crashed = await client.call_tool("simulate", {"kernel": "served_kernels.py:crash"})
            arguments = {"kernel": "served_kernels.py:double", "inputs": "int32[1] = [4]"}
            return crashed, await client.call_tool("simulate", arguments)

    crashed, right = anyio.run(call)
    assert crashed.structured_content["status"] == "crashed"
    assert right.structured_content["result"]["outputs"][0]["values"] == [8]


@pytest.mark.parametrize("missing", ["mcp_types", "mcp.server.lowlevel", "jsonschema"])
def test_without_the_sdk(monkeypatch, capsys, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    assert main(["mcp"]) == 2
    assert capsys.readouterr().err == (
        "pytest-pallas: mcp needs the SDK of the Model Context Protocol, version 2: "
        "pip install 'pytest-pallas[mcp]'\n"
    )
