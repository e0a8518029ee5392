"""docs/ci.md: its files are valid, and their commands run in a small project."""

import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from pytest_pallas.compile import libtpu
from pytest_pallas.database import parse_places

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/ci.md").read_text()
FILES = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))
SCHEMAS = {
    ".github/workflows/kernels.yml": ["vendor.github-workflows"],
    ".gitlab-ci.yml": ["vendor.gitlab-ci", "--data-transform", "gitlab-ci"],
}

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
    backends=("tpu-sim", "tpu-compile", "tpu", "gpu"),
)
"""

TEST = """
import numpy as np
from mykernels.double import double

def test_double(pallas_check):
    pallas_check(double, np.ones((8, 128), np.float32), reference=lambda x: x * 2)
"""


def commands():
    """Every command, with the file and the job that it is in."""
    found = []
    for file, text in FILES.items():
        content = yaml.safe_load(text)
        jobs = content.get("jobs", content)
        for job, body in jobs.items():
            if not isinstance(body, dict):
                continue
            steps = [step["run"] for step in body.get("steps", ()) if "run" in step]
            steps += [*body.get("before_script", ()), *body.get("script", ())]
            found += [(file, job, step) for step in steps]
    return found


COMMANDS = commands()
PYTEST = [each for each in COMMANDS if each[2].split()[0].endswith("pytest")]


def options_of(command):
    """The options of a command, as a machine without network and hardware can take them."""
    command = re.sub(r"\$\{\{ github.repository \}\}", "owner/name", command)
    command = re.sub(r"\$\{\{ github.run_number \}\}|\$CI_PIPELINE_IID", "7", command)
    assert "$" not in command, command
    return shlex.split(command)[1:]


@pytest.fixture
def project(pytester):
    package = pytester.mkpydir("mykernels")
    (package / "double.py").write_text(KERNEL)
    (package / "double_spec.py").write_text(SPEC)
    pytester.mkdir("tests").joinpath("test_double.py").write_text(TEST)
    pytester.syspathinsert()
    return pytester


def here(options):
    """The options in one process, for a moment, without what is kept elsewhere."""
    text = " ".join(options)
    text = re.sub(r"-n \w+ ", "", text)
    text = text.replace(",readonly+github:owner/name", "").replace("=3600", "=1")
    return ["-p", "no:cacheprovider", *text.split()]


#: The longest command of each job: those of the two files differ in the reports that they write.
JOBS = {
    job: max((c for _, other, c in PYTEST if other == job), key=lambda c: len(options_of(c)))
    for _, job, _ in PYTEST
}


@pytest.mark.parametrize("file", FILES)
def test_the_file_is_what_its_server_takes(file, tmp_path):
    (tmp_path / "file.yml").write_text(FILES[file])
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", *SCHEMAS[file]]
    done = subprocess.run([*command, "file.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_both_files_have_the_jobs_of_the_table():
    rows = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", TEXT, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    for file in FILES:
        assert {job for there, job, _ in PYTEST if there == file} == named


@pytest.mark.parametrize(("file", "job", "command"), PYTEST, ids=lambda value: value[:12])
def test_the_longest_command_of_a_job_stands_for_all(file, job, command):
    assert {*here(options_of(command))} <= {*here(options_of(JOBS[job]))}


@pytest.mark.parametrize("job", ["tests", "fuzz"])
def test_jobs_on_the_simulators(project, job):
    result = project.runpytest_inprocess(*here(options_of(JOBS[job])))
    outcomes = result.parseoutcomes()
    assert outcomes["passed"] > 5
    assert ("tests/test_double.py" in result.stdout.str()) is (job == "tests")
    assert not outcomes.keys() & {"failed", "errors", "error"}
    for name in ("report.html", "results.json", "junit.xml"):
        assert name in JOBS[job]
        assert (project.path / name).stat().st_size > 100


@pytest.mark.skipif(libtpu.missing() is not None, reason=str(libtpu.missing()))
def test_the_job_that_compiles_fails_where_no_costs_are_recorded(project):
    options = ["-o", "cache_dir=compiled", *here(options_of(JOBS["compile"]))[2:]]
    once = [option.replace("=compare", "=record") for option in options]
    assert project.runpytest_inprocess(*once).ret == 0
    assert (project.path / "pallas_costs.json").exists()
    assert project.runpytest_inprocess(*options).ret == 0


@pytest.mark.parametrize("job", ["gpu", "tpu"])
def test_a_runner_without_its_hardware_fails(project, job):
    result = project.runpytest_inprocess(*here(options_of(JOBS[job])))
    assert result.ret == 4
    assert f"backend '{job}' is not available" in result.stderr.str()


def test_databases_can_be_read():
    urls = {
        word.partition("=")[2]
        for *_, command in PYTEST
        for word in options_of(command)
        if word.startswith("--pallas-database")
    }
    assert {tuple(place.kind for place in parse_places(url)) for url in urls} == {
        ("folder", "github"),
        ("folder",),
    }


def test_extras_exist():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = set(re.findall(r"EXTRAS: (\S+)|pytest-pallas\[([\w,-]+)\]", TEXT))
    words = {word for pair in named for group in pair for word in group.split(",") if word}
    assert {"report", "tpu", "gpu", "tpu-compile"} <= words
    assert words <= set(extras["optional-dependencies"])


def test_every_other_command_only_installs():
    rest = {each[2].split()[0] for each in COMMANDS if each not in PYTEST}
    assert rest <= {"pip", "python", ".venv/bin/pip"}
