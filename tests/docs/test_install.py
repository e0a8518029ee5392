"""docs/install.md: its files agree with pyproject.toml, and what it says of systems holds."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from pallas_test_support.forked_python import run_python

from pytest_pallas.options import DOCTOR, TABLE
from pytest_pallas.tested import TESTED

ROOT = Path(__file__).parents[2]
PAGE = "docs/install.md"
TEXT = (ROOT / PAGE).read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
SIMULATOR = tomllib.loads((ROOT / "pallas_sim/pyproject.toml").read_text())["project"]
DOCKERFILE = (ROOT / "examples/docker/Dockerfile").read_text()
PIXI = (ROOT / "examples/pixi/pixi.toml").read_text()
CONDA = (ROOT / "examples/conda/environment.yml").read_text()

#: conda-forge's names of what PyPI calls otherwise.
OTHER_NAMES = {"python-flatbuffers": "flatbuffers"}


def split(requirement):
    """The name and the versions of a requirement."""
    name, versions = re.fullmatch(r"([\w-]+)(.*)", requirement).groups()
    return OTHER_NAMES.get(name, name), versions


def needed():
    """What must be installed, and its versions: all dependencies of both, and pytest-xdist."""
    both = [*PROJECT["dependencies"], *SIMULATOR["dependencies"]]
    dependencies = dict(split(each) for each in both)
    assert dependencies.pop(SIMULATOR["name"]) == f"=={SIMULATOR['version']}"
    development = dict(split(each) for each in PYPROJECT["dependency-groups"]["dev"])
    return {**dependencies, "pytest-xdist": development["pytest-xdist"]}


def pixi():
    manifest = tomllib.loads(PIXI)
    found = {**manifest["dependencies"], **manifest["pypi-dependencies"]}
    return dict(split(name + versions) for name, versions in found.items())


def conda():
    dependencies = yaml.safe_load(CONDA)["dependencies"]
    [by_pip] = [each["pip"] for each in dependencies if isinstance(each, dict)]
    plain = [each for each in dependencies if isinstance(each, str) and each != "pip"]
    return dict(split(each) for each in [*plain, *by_pip])


def commands(text):
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("read", [pixi, conda])
def test_names_and_versions_agree_with_the_project(read):
    found = read()
    oldest, newest = TESTED["python"].oldest, TESTED["python"].newest
    major, minor = newest.split(".")
    assert found.pop("python") == f">={oldest},<{major}.{int(minor) + 1}"
    assert PROJECT["requires-python"] == f">={oldest}"
    assert found.pop(PROJECT["name"]) == found.pop(SIMULATOR["name"]) == ">=0.1"
    assert found == needed()


def test_pixi_and_conda_take_the_same_from_conda_forge():
    plain = [each for each in yaml.safe_load(CONDA)["dependencies"] if isinstance(each, str)]
    names = {re.match(r"[\w-]+", each)[0] for each in plain}
    assert names - {"pip"} == set(tomllib.loads(PIXI)["dependencies"])


def test_tasks_of_the_page_are_those_of_pixi():
    tasks = tomllib.loads(PIXI)["tasks"]
    used = {line.split()[2] for line in commands(TEXT) if line.startswith("pixi run")}
    assert used | {"specs"} == set(tasks)
    assert all(shlex.split(task)[0] == "pytest" for task in tasks.values())


@pytest.mark.parametrize("text", [DOCKERFILE, PIXI, CONDA], ids=["docker", "pixi", "conda"])
def test_files_name_options_that_exist_and_no_host(text):
    named = set(re.findall(r"(?<![\w-])--pallas-[a-z-]*[a-z]", text))
    assert DOCTOR in named or "--pallas-suite" in named
    assert named <= {DOCTOR, *(option.flag for option in TABLE)}
    assert "://" not in text


def test_the_image_is_built_of_what_is_there():
    instructions = re.findall(r"^([A-Z]+) (.*)$", DOCKERFILE, re.MULTILINE)
    words = dict(instructions)
    [version] = re.findall(r"^python:(\d\.\d+)-slim$", words["FROM"])
    assert f"Python :: {version}" in " ".join(PROJECT["classifiers"])
    assert words["ARG"] == f"PLUGIN={PROJECT['name']}"
    source, target = words["COPY"].split()
    assert (ROOT / source / "pyproject.toml").exists()
    assert target == "."
    assert [name for name, _ in instructions].index("ARG") < len(instructions) - 1
    assert yaml.safe_load(words["CMD"])[0] == "pytest"
    assert "docker build -f examples/docker/Dockerfile -t kernel-tests ." in DOCKERFILE
    assert "docker build -f examples/docker/Dockerfile -t kernel-tests ." in commands(TEXT)


def test_what_the_simulator_brings_is_named():
    [line] = [line for line in TEXT.splitlines() if line.startswith("`pip install pallas-sim`")]
    named = set(re.findall(r"`([\w-]+)`", TEXT[TEXT.index(line) :].partition("\n\n")[0]))
    assert {split(each)[0] for each in SIMULATOR["dependencies"]} <= named


def test_files_of_the_examples_are_linked():
    linked = set(re.findall(r"\]\(\.\./(examples/[^)]+)\)", TEXT))
    assert linked == {
        "examples/docker/Dockerfile",
        "examples/pixi/pixi.toml",
        "examples/conda/environment.yml",
    }
    assert all((ROOT / each).is_file() for each in linked)


def test_every_extra_is_named():
    table = TEXT[TEXT.index("| extra |") : TEXT.index("## uv")]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    assert set(re.findall(r"`([\w-]+)`", " ".join(rows))) == set(PROJECT["optional-dependencies"])


#: What a core installation lacks, and the plugins that pytest would load.
EXTRAS = """
import sys
for name in ("distributed", "jax_cuda13_plugin", "jaxtyping", "jinja2", "libtpu", "playwright",
             "pytest_benchmark", "redis", "safetensors", "selenium", "xdist"):
    sys.modules[name] = None
import pytest
options = ["-q", "-rs", "-p", "no:cacheprovider", "-p", "pytest_pallas.plugin"]
sys.exit(pytest.main([*options, *sys.argv[1:]]))
"""

DOUBLE = """
import jax
import numpy as np
from jax.experimental import pallas as pl

def double(x):
    def body(x_ref, o_ref):
        o_ref[...] = 2 * x_ref[...]
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

X = np.ones((8, 128), np.float32)

def test_double(pallas_check):
    pallas_check(double, X, reference=lambda x: 2 * x)

def test_compile(pallas_compile):
    pallas_compile(double, X, target="v6e")

def test_times(pallas_benchmark):
    pallas_benchmark(double, X)
"""


@pytest.fixture(scope="module")
def core(tmp_path_factory):
    """Run pytest as in an installation without extras and without pytest-xdist."""
    folder = tmp_path_factory.mktemp("core")
    (folder / "bare.py").write_text(EXTRAS)
    (folder / "test_core.py").write_text(DOUBLE)
    environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    return lambda *options: run_python("bare.py", *options, cwd=folder, env=environment)


@pytest.mark.parametrize(
    ("extra", "option"),
    [
        ("report", "--pallas-html=report.html"),
        ("tpu-compile", "--pallas-backend=tpu-compile"),
        ("golden", "--pallas-golden=record"),
        ("redis", "--pallas-database=redis://localhost"),
        ("fleet", "--pallas-fleet=local:1"),
    ],
)
def test_an_extra_that_is_missing_is_named(core, extra, option):
    done = core(option)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"pip install 'pytest-pallas[{extra}]'" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    section = TEXT.partition("### Without extras\n")[2].partition("\n## ")[0]
    assert re.search(rf"^\| [^|]*`{extra}`.*\| a usage error", section, re.MULTILINE)


def test_tests_without_extras(core):
    done = core()
    assert "1 passed, 1 skipped, 1 error" in done.stdout
    for extra in ("tpu-compile", "benchmark"):
        assert f"pip install 'pytest-pallas[{extra}]'" in done.stdout


@pytest.mark.parametrize(
    "option",
    [
        "--pallas-results=results.json",
        "--pallas-shard=1/1",
        "--pallas-mutate=1",
        "--pallas-isolate=always",
    ],
)
def test_what_needs_no_extra(core, option):
    done = core(option, "-k", "test_double")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout


@pytest.mark.skipif(shutil.which("uv") is None, reason="uv is not installed")
@pytest.mark.parametrize("command", [each for each in commands(TEXT) if "uv " in each])
def test_uv_has_the_options(command):
    words = shlex.split(command.rpartition("| ")[2])
    assert words[0] == "uv"
    named = [word for word in words[2:] if word.startswith("--")]
    subcommand = words[1:3] if words[1] == "pip" else words[1:2]
    help_text = subprocess.run(["uv", *subcommand, "--help"], capture_output=True, text=True)
    assert help_text.returncode == 0
    assert set(named) <= set(re.findall(r"--[\w-]+", help_text.stdout))


@pytest.mark.parametrize(("factor", "status"), [("2", 0), ("3", 1)])
def test_the_test_of_bazel(blocks, tmp_path, factor, status):
    code = dict(blocks(PAGE))["double_test.py"]
    assert "= 2 * x_ref" in code
    (tmp_path / "double_test.py").write_text(code.replace("= 2 * x_ref", f"= {factor} * x_ref"))
    command = [sys.executable, "-B", "double_test.py"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={})
    assert ended.returncode == status, ended.stderr
    assert ("double: forward on tpu-sim is wrong" in ended.stderr) == bool(status)
    assert [path.name for path in tmp_path.iterdir()] == ["double_test.py"]  # nothing is written


def test_bazels_files_name_the_test_and_the_packages():
    files = dict(re.findall(r"```starlark\n# (\S+)\n(.*?)```", TEXT, re.DOTALL))
    assert set(files) == {"BUILD.bazel", "MODULE.bazel"}
    for text in files.values():
        compile(text, "<starlark>", "exec")  # its syntax is a part of Python's
    assert '"double_test.py"' in files["BUILD.bazel"]
    [hub] = re.findall(r'hub_name = "(\w+)"', files["MODULE.bazel"])
    imported = {"jax", "numpy", "pytest_pallas"}
    assert set(re.findall(rf'"@{hub}//(\w+)"', files["BUILD.bazel"])) == imported
    [lock] = re.findall(r'requirements_lock = "//:([\w.]+)"', files["MODULE.bazel"])
    assert any(f"--output-file {lock}" in each for each in commands(TEXT))


@pytest.mark.parametrize("module", ["fcntl", "resource"])
def test_what_windows_lacks_is_needed(module):
    """Where this fails, the page can say that Windows works, once somebody has tried."""
    code = f"""
import sys
sys.modules[{module!r}] = None
import pytest_pallas, pytest_pallas.workers.process
pytest_pallas.check
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert f"import of {module} halted" in ended.stderr
    assert f"`{module}`" in TEXT
