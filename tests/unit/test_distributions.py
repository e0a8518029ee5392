"""The two distributions: the plugin, and the kernels, which only those get who ask for them."""

import tomllib
from pathlib import Path

import pytest

import pytest_pallas
from pytest_pallas.run.collection import locate

ROOT = Path(__file__).parents[2]
PLUGIN = tomllib.loads((ROOT / "pyproject.toml").read_text())
KERNELS = tomllib.loads((ROOT / "reference_kernels/pyproject.toml").read_text())


def test_the_plugin_installs_one_package():
    assert PLUGIN["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["pytest_pallas"]


def test_both_have_the_same_version():
    version = pytest_pallas.__version__
    assert KERNELS["project"]["version"] == version
    assert KERNELS["project"]["dependencies"] == [f"pytest-pallas=={version}"]
    assert KERNELS["project"]["requires-python"] == PLUGIN["project"]["requires-python"]


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
