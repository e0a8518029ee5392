"""What workers of xdist or of isolation report is what one process reports: once, and in order."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'pytest-pallas[report]'")

SPECS = """
from hypothesis import strategies as st
from kernels import *
from pytest_pallas import KernelSpec, strategies as pst

ARRAYS = pst.arrays("m n, m n", dtype="float32", dims={"m": 8, "n": [128, 256]})

def scaled(x, y, scale=1.0):
    return add(x, y)

BAD = KernelSpec(
    name="bad", kernel=add_off, reference=reference, inputs=ARRAYS, vmappable=False
)
GOOD = KernelSpec(name="good", kernel=add, reference=reference, inputs=ARRAYS, vmappable=False)
SCALED = KernelSpec(
    name="scaled",
    kernel=scaled,
    reference=lambda x, y, scale=1.0: x + y,
    inputs=pst.arguments(ARRAYS, options={"scale": st.sampled_from([1.0, 2.0, 3.0])}),
    vmappable=False,
)
"""

CONFTEST = """
    def pytest_pallas_record(config, record):
        assert not hasattr(config, "workerinput")
        with open("noted.txt", "a") as file:
            file.write(f"{record.kernel} {record.check} {record.outcome}\\n")

    def pytest_runtest_logreport(report):
        if report.when == "call" and report.failed:
            path, line, name = report.location
            with open("annotated.txt", "a") as file:
                file.write(f"{path}:{line + 1} {name} {type(report.longrepr).__name__}\\n")
"""

RUN = (
    "--pallas-suite=specs",
    "--pallas-backend=tpu-sim",
    "--pallas-checks=forward,determinism,donation",
    "--pallas-max-examples=2",
    "--pallas-results=results.json",
    "--pallas-html=report.html",
    "--pallas-trace=run.json",
    "--junit-xml=junit.xml",
)


def reported(project: Any, where: str) -> dict[str, Any]:
    """All that a run reports, by where, without times."""
    # What failed before would be tried again first.
    shutil.rmtree(project.path / ".hypothesis", ignore_errors=True)
    result = project.run(*RUN, where)
    result.assert_outcomes(failed=1, passed=5)
    text = {path: (project.path / path).read_text("utf-8") for path in WRITTEN}
    for path in WRITTEN:
        (project.path / path).unlink()
    results = json.loads(text["results.json"])
    for record in results["records"]:
        del record["seconds"], record["kernel_seconds"]
    for test in results["tests"]:
        del test["seconds"]
        for failure in test.get("failures", ()):
            # the replay command of an isolated run has another option
            failure["message"] = failure["message"].replace("--pallas-isolate=always ", "")
    trace = json.loads(text["run.json"])
    return {
        "terminal": [*section(result.outlines)],
        "results": results,
        "page": timeless(text["report.html"]),
        "junit": properties(text["junit.xml"]),
        "records": sorted(text["noted.txt"].splitlines()),
        "annotations": sorted({*text["annotated.txt"].splitlines()}),  # workers call the hook, too
        "trace": (trace["otherData"], [e["name"] for e in trace["traceEvents"]]),
    }


WRITTEN = (
    *("results.json", "report.html", "run.json", "junit.xml"),
    *("noted.txt", "annotated.txt"),
)


def section(lines: list[str]) -> list[str]:
    """What the terminal shows of the kernels."""
    start = next(i for i, line in enumerate(lines) if re.fullmatch(r"=+ pallas =+", line))
    end = next(i for i in range(start + 1, len(lines)) if re.match(r"=+ \S", lines[i]))
    return [re.sub(r"\s+\d+\.\d$", "", line) for line in lines[start + 1 : end]]


def timeless(text: str) -> str:
    """A page without times and without the command line's difference."""
    text = re.sub(r"[\d,.]+ s\b|\d+-\d+-\d+ \d+:\d+ UTC", "", text)
    text = re.sub(r'data-value="[^"]*">[\d.]+</td>|<td class="number">\d+\.\d</td>', "", text)
    text = re.sub(r"-o pallas_isolate=never |--pallas-isolate=always", "", text)
    return re.sub(r"-n\d|runpytest-\d", "", text)


def properties(text: str) -> dict[str | None, list[tuple[str | None, str | None]]]:
    """Those of each test in an XML report, as pairs."""
    return {
        case.get("name"): [
            (each.get("name"), each.get("value")) for each in case.iterfind("properties/property")
        ]
        for case in ElementTree.fromstring(text).iter("testcase")
    }


@pytest.mark.parametrize("workers", ["-n2", "--pallas-isolate=always"])
def test_workers_report_what_one_process_does(project: Any, workers: str) -> None:
    (project.path / "specs.py").write_text(SPECS)
    project.write(conftest=CONFTEST)
    one, two = reported(project, "-n0"), reported(project, workers)
    for where, found in one.items():
        assert two[where] == found, where
    # And it is something.
    assert [(r["kernel"], r["check"], r["outcome"]) for r in two["results"]["records"]] == [
        ("bad", "forward", "failed"),
        ("bad", "determinism", "passed"),
        *((kernel, check, "passed") for kernel in ("good", "scaled") for check in CHECKS),
    ]
    assert len(two["results"]["not_applicable"]) == 3
    assert two["results"]["distinct"]["triples"] == 9
    terminal = "\n".join(two["terminal"])
    assert "not applicable: 3 checks of 3 kernels (-v lists them)" in terminal
    assert "distinct: 9 (spec, check, shape) triples" in terminal
    assert "inputs: 3 kernels, " in terminal
    assert "never drawn: " in terminal
    assert len(two["records"]) == 6
    assert two["annotations"] == [f"kernels.py:{line_of('add_off')} bad-forward[tpu-sim] str"]
    (script,) = {record["script"] for record in two["results"]["records"]} - {""}
    assert script.endswith("/bad-forward-tpu-sim.py")
    assert dict(two["junit"]["bad-forward[tpu-sim]"])["pallas_kernel"] == "bad"
    about, kernels = two["trace"]
    assert (about["kernel"], about["failed"]) == ("bad", True)
    assert "_off_body" in kernels


CHECKS = ("forward", "determinism")


def line_of(kernel: str) -> int:
    from pathlib import Path

    lines = (Path(__file__).parents[1] / "kernels_source.py").read_text().splitlines()
    return lines.index(f"def {kernel}(x: Any, y: Any) -> Any:") + 1
