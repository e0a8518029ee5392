"""The sanitizer ``device``, with a stand-in for compute-sanitizer, which needs an NVIDIA GPU."""

import os
import stat
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

from pallas_sim.errors import BoundsError, KernelError
from pytest_pallas import HangError, NotApplicableError, RaceError
from pytest_pallas.backends.protocol import RunSettings
from pytest_pallas.backends.registry import FAMILIES, parse
from pytest_pallas.checks import device as module
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.device import SanitizerReport
from pytest_pallas.checks.device import parse as parse_output
from pytest_pallas.draw.arguments import Arguments

DEVICE = module.device
(INTERPRET,) = parse("interpret", {family.name: family for family in FAMILIES})

MEMCHECK = """\
========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at oob_kernel+0x70
=========     by thread (31,0,0) in block (7,0,0)
=========     Access at 0x7f6510c00400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f6510c00000 of size 1,024 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
=========         Host Frame: [0x2e3d]
=========
========= ERROR SUMMARY: 1 error
"""

RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at body+0x90
=========     and Read access at body+0x120 [252 hazards]
=========
========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)
"""


def add(x, y, *, times=1):
    return x + times * y


def fail(x):
    raise ValueError("no such thing")


def context(kernel, *args, options=None, timeout=60.0):
    arguments = Arguments(args, options or {}, {})
    return CheckContext(
        kernel=kernel,
        reference=None,
        arguments=arguments,
        backend=INTERPRET,
        settings=RunSettings(timeout=timeout),
    )


@pytest.fixture
def tool(tmp_path, monkeypatch):
    """Put a compute-sanitizer on the PATH that does what a Python body says."""

    def put(body):
        path = tmp_path / "compute-sanitizer"
        start = "import subprocess, sys, time\n_, _, tool, _, code, *program = sys.argv\n"
        path.write_text(f"#!{sys.executable}\n{start}{textwrap.dedent(body)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return put


class TestOutput:
    def test_an_access_out_of_bounds(self):
        found = parse_output(MEMCHECK, 86)
        assert found == SanitizerReport(
            hazards=(
                "Invalid __global__ write of size 4 bytes; at oob_kernel+0x70; "
                "by thread (31,0,0) in block (7,0,0)",
            )
        )

    def test_a_race_is_parsed_with_both_accesses(self):
        (told,) = parse_output(RACECHECK, 86).hazards
        assert told == (
            "Error: Race reported between Write access at body+0x90; "
            "and Read access at body+0x120 [252 hazards]"
        )

    def test_many_of_a_kind(self):
        text = "".join(
            MEMCHECK.replace("block (7,0,0)", f"block ({n},0,0)") for n in (1, 2, 2, 3, 4, 5, 6)
        )
        told = parse_output(text, 86).hazards
        assert len(told) == 5
        assert told[-1] == "and 2 more"

    def test_a_run_without_errors_has_an_empty_report(self):
        text = "========= COMPUTE-SANITIZER\n========= ERROR SUMMARY: 0 errors\n"
        assert parse_output(text, 0) == SanitizerReport()

    def test_a_machine_on_which_it_does_not_work(self):
        text = "========= COMPUTE-SANITIZER\n========= Error: Device not supported\n"
        assert parse_output(text, 1) == SanitizerReport(unusable="Device not supported")

    def test_a_program_that_fails(self):
        text = "========= COMPUTE-SANITIZER\nTraceback:\nValueError: no\n"
        assert parse_output(text, 1) == SanitizerReport(failed="exit status 1: ValueError: no")


class TestRun:
    def test_the_call_is_run_under_both_tools(self, tool, tmp_path):
        tool(
            f"""
            open({str(tmp_path / "tools")!r}, "a").write(tool + " ")
            sys.exit(subprocess.run(program).returncode)
            """
        )
        x = np.ones(3, np.float32)
        assert module.device(context(add, x, jnp.ones(3), options={"times": 2})).failed is None
        assert (tmp_path / "tools").read_text() == "memcheck racecheck "

    @pytest.mark.parametrize(
        ("wanted", "printed", "error"),
        [("memcheck", MEMCHECK, BoundsError), ("racecheck", RACECHECK, RaceError)],
    )
    def test_what_a_tool_finds(self, tool, wanted, printed, error):
        tool(f"if tool == {wanted!r}:\n    print({printed!r}); sys.exit(int(code))")
        with pytest.raises(error, match=f"--tool {wanted}: .*access|--tool {wanted}: Invalid"):
            module.device(context(add, 1.0, 2.0))

    def test_a_kernel_that_raises(self, tool):
        tool("sys.exit(subprocess.run(program).returncode)")
        with pytest.raises(KernelError, match="exit status 1: ValueError: no such thing"):
            module.device(context(fail, np.ones(3)))

    def test_a_kernel_that_hangs(self, tool, monkeypatch):
        monkeypatch.setattr(module, "START", 0.1)
        tool("time.sleep(60)")
        with pytest.raises(HangError, match="did not end within 1 s under compute-sanitizer"):
            module.device(context(add, 1.0, 2.0, timeout=0.05))

    def test_where_it_does_not_work(self, tool):
        tool("print('========= Error: Device not supported'); sys.exit(1)")
        with pytest.raises(
            NotApplicableError, match="does not work on this machine: Device not supported"
        ):
            module.device(context(add, 1.0, 2.0))

    def test_a_function_without_a_name(self):
        with pytest.raises(NotApplicableError, match="imported by name"):
            module.device(context(lambda x: x, 1.0))


def test_it_is_for_gpus_only():
    assert "interpret is not a GPU" in DEVICE.requires_backend(INTERPRET)


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, False),
        ({"sanitize": "all"}, False),
        ({"checks": "all"}, False),
        ({"sanitize": "device"}, True),
        ({"checks": "device"}, True),
    ],
)
def test_only_who_names_it_asks_for_it(options, asked, request):
    from pytest_pallas.fixtures import current

    session = current(request.config)
    names = [check.name for check in session.checks_for(session.options.replaced(**options))]
    assert ("device" in names) == asked
