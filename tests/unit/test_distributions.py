"""The distributions: the simulator, the plugin, and the kernels for those who ask for them."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import pytest_pallas
from pytest_pallas.run.collection import locate

ROOT = Path(__file__).parents[2]
PLUGIN = tomllib.loads((ROOT / "pyproject.toml").read_text())
SIMULATOR = tomllib.loads((ROOT / "pallas_sim/pyproject.toml").read_text())
KERNELS = tomllib.loads((ROOT / "reference_kernels/pyproject.toml").read_text())


def test_the_plugin_installs_one_package():
    assert PLUGIN["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["pytest_pallas"]


def test_all_have_the_same_version():
    version = pytest_pallas.__version__
    assert SIMULATOR["project"]["version"] == version
    assert f"pallas-sim=={version}" in PLUGIN["project"]["dependencies"]
    assert SIMULATOR["project"]["requires-python"] == PLUGIN["project"]["requires-python"]
    assert KERNELS["project"]["version"] == version
    assert KERNELS["project"]["dependencies"] == [f"pytest-pallas=={version}"]
    assert KERNELS["project"]["requires-python"] == PLUGIN["project"]["requires-python"]


def imported_by(path):
    """The packages that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            yield node.module.partition(".")[0]
        elif isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)


def test_the_simulator_imports_what_its_distribution_requires():
    paths = (ROOT / "pallas_sim").rglob("*.py")
    imported = {name for path in paths for name in imported_by(path)}
    required = {re.match(r"\w+", line)[0] for line in SIMULATOR["project"]["dependencies"]}
    assert imported - sys.stdlib_module_names == required | {"pallas_sim", "scipy"}  # jax's own


def test_the_simulator_runs_alone(tmp_path):
    """The first example of docs/simulator.md imports neither pytest nor Hypothesis nor the plugin.

    ``.ci/run`` runs it where only the simulator is installed.
    """
    page = (ROOT / "docs/simulator.md").read_text()
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    beyond = "{'pytest', 'pluggy', 'hypothesis', 'pytest_pallas'} & sys.modules.keys()"
    (tmp_path / "example.py").write_text(f"{example}\nimport sys\nassert not {beyond}\n")
    ended = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.startswith("1024.0\nrace on o_ref")


@pytest.mark.parametrize(
    ("module", "remedy"),
    [
        ("reference_kernels.no_such", "pip install pytest-pallas-kernels"),
        ("no_such", "add its folder to the pythonpath"),
    ],
)
def test_a_missing_suite_says_how_to_get_it(module, remedy, tmp_path):
    with pytest.raises(pytest.UsageError, match=f"no module named '{module}'.*{remedy}"):
        locate(module, tmp_path)
