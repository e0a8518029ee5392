"""docs/findings.md: its programs fail as it shows, and it tells of every expected failure."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

from pytest_pallas import KernelSpec, PallasError

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/findings.md").read_text()
PROGRAM = re.compile(r"```python\n(# (\w+\.py)\n.*?)```\n\n```text\n(.*?)```", re.DOTALL)
FINDINGS = PROGRAM.findall(PAGE)


def without_folders(text):
    return re.sub(r"/\S*/(?=\w+\.py)", "", text)


@pytest.mark.filterwarnings("ignore:jax.experimental.pallas.ops.gpu:DeprecationWarning")
@pytest.mark.parametrize(("program", "file", "shown"), FINDINGS, ids=[each[1] for each in FINDINGS])
def test_a_program_fails_as_shown(program, file, shown, tmp_path):
    pytest.importorskip("absl")  # modules of kernels for GPUs need it
    path = tmp_path / file
    path.write_text(program, encoding="utf-8")
    with pytest.raises(PallasError) as failure:
        exec(compile(program, str(path), "exec"), {"__name__": file})
    message = without_folders(str(failure.value))
    for line in shown.splitlines():
        assert line in message, line


def test_every_program_has_a_section():
    assert len(FINDINGS) == PAGE.count("```python") == len(re.findall("^### ", PAGE, re.MULTILINE))


def test_every_expected_failure_is_told_of(monkeypatch):
    pytest.importorskip("absl")
    monkeypatch.syspath_prepend(str(ROOT / "examples/published"))
    package = importlib.import_module("published")
    failing = set()
    for module in pkgutil.walk_packages(package.__path__, "published."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, KernelSpec) and value.xfail:
                failing.add(value.name)
    assert len(failing) > 20
    assert failing - set(re.findall(r"`(\w+)`", PAGE)) == set()


@pytest.mark.parametrize("name", ["README.md", "docs/index.md", "CHANGELOG.md"])
def test_other_pages_count_them(name):
    assert f"{len(FINDINGS)} findings" in (ROOT / name).read_text()
