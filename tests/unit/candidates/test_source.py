"""Which files are read of a candidate that imports others beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_pallas import verify
from pytest_pallas.candidates.source import MOST_FILES, candidate_of

HELPERS = """
import jax
from jax.experimental import pallas as pl

def scaled(x, factor):
    def body(x_ref, o_ref):
        o_ref[...] = x_ref[...] * factor
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""

KERNEL = "\ndef kernel(x):\n    return helpers.scaled(x, 2)\n"


def written(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def passes(path: Path) -> Any:
    settings: dict[str, Any] = {"targets": ("tpu-sim:v6e",), "sizes": {"m": 8, "n": 8}, "seed": 1}
    report = verify(f"{path}:kernel", lambda x: 2 * x, "m n", hidden=1, **settings)
    assert report.passed, str(report)
    return report


@pytest.mark.parametrize(
    ("own", "start"),
    [
        ("kernel.py", "import helpers"),
        ("my-kernel.py", "import helpers"),
        ("package/kernel.py", "from . import helpers"),
        ("package/kernel.py", "from package import helpers"),
        ("package/inner/kernel.py", "from .. import helpers"),
    ],
)
def test_a_candidate_may_import_what_is_beside_it(tmp_path: Path, own: str, start: str) -> None:
    folder = "package/" if "/" in own else ""
    files = {own: start + KERNEL, f"{folder}helpers.py": HELPERS, f"{folder}other.py": "1 / 0"}
    if folder:
        files["package/__init__.py"] = ""
    report = passes(written(tmp_path, files) / own)
    assert f"{folder}helpers.py" in report.files
    assert f"{folder}other.py" not in report.files
    assert all(len(digest) == 64 for digest in report.files.values())


def test_a_folder_can_be_a_package_without_a_file(tmp_path: Path) -> None:
    files = {"package/kernel.py": "from .helpers import *\nfrom . import helpers" + KERNEL}
    passes(written(tmp_path, {**files, "package/helpers.py": HELPERS}) / "package/kernel.py")


def test_lines_of_other_files_are_named(tmp_path: Path) -> None:
    helpers = "def scaled(x, factor):\n    return x.no_such_thing"
    written(tmp_path, {"kernel.py": "import helpers" + KERNEL, "helpers.py": helpers})
    report = verify(f"{tmp_path}/kernel.py:kernel", lambda x: x, "m n", targets=("tpu-sim:v6e",))
    assert report.counterexamples[0].line == f"{tmp_path}/helpers.py:2"


def test_a_function_of_an_installed_package_has_its_imports() -> None:
    from jax.experimental.pallas.ops.tpu import matmul

    source = candidate_of(matmul.matmul)
    assert source.package == "jax.experimental.pallas.ops.tpu"
    assert list(source.files) == ["jax/experimental/pallas/ops/tpu/matmul.py"]


@pytest.mark.parametrize("name", ["numpy.py", "jax/numpy.py", "pytest_pallas/__init__.py", "os.py"])
def test_no_file_stands_for_a_module_of_the_sandbox(tmp_path: Path, name: str) -> None:
    module = name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
    written(tmp_path, {"kernel.py": f"import {module}\ndef kernel(x): return x", name: ""})
    problem = candidate_of(f"{tmp_path}/kernel.py:kernel").problem
    assert problem is not None
    assert (problem.stage, problem.name) == ("imports", "shadows")


def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    written(tmp_path, {"a/kernel.py": "import helpers" + KERNEL, "b/helpers.py": HELPERS})
    (tmp_path / "a/helpers.py").symlink_to(tmp_path / "b/helpers.py")
    source = candidate_of(f"{tmp_path}/a/kernel.py:kernel")
    assert source.problem is not None
    assert source.problem.name == "outside"
    assert not any("helpers" in name for name in source.files)


def test_files_are_bounded(tmp_path: Path) -> None:
    files = {f"m{n}.py": f"import m{n + 1}" for n in range(MOST_FILES + 2)}
    written(tmp_path, {**files, "kernel.py": "import m0", "large.py": "#" * (1 << 20)})
    many = candidate_of(f"{tmp_path}/kernel.py:kernel").problem
    (tmp_path / "kernel.py").write_text("import large")
    large = candidate_of(f"{tmp_path}/kernel.py:kernel").problem
    assert many is not None
    assert large is not None
    assert (many.name, large.name) == ("too large", "too large")
