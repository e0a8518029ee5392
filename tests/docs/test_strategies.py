"""docs/strategies.md: its examples pass, and it names every strategy and value class."""

import glob
import re
from pathlib import Path

import pytest

from pytest_pallas import strategies
from pytest_pallas.draw.values import CLASSES

TEXT = (Path(__file__).parents[2] / "docs/strategies.md").read_text()
DRAWN = [name for name in strategies.__all__ if name[0].islower()]


@pytest.mark.parametrize("number", range(TEXT.count("```python")))
def test_examples(blocks, pytester, number):
    name, block = blocks("docs/strategies.md")[number]
    if "import jaxtyping" in block or "from jaxtyping" in block:
        pytest.importorskip("jaxtyping", reason="jaxtyping is not installed")
    (pytester.path / name).write_text(block)
    if not name.startswith("test_"):  # a spec whose examples grow
        pytester.syspathinsert()
        suite = (f"--pallas-suite={name.removesuffix('.py')}", "-kforward")
        done = pytester.runpytest_inprocess("-p", "no:cacheprovider", *suite)
        done.assert_outcomes(failed=1, deselected=10)
        (shown,) = re.findall("\n    (double: forward .*?)\n\n", TEXT, re.DOTALL)
        lines = [line.strip() for line in shown.splitlines() if line.strip() != "..."]
        done.stdout.fnmatch_lines([f"*{glob.escape(line)}" for line in lines])
        return
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)


@pytest.mark.parametrize("name", sorted(set(DRAWN) - {"parse", "shaped", "as_arguments", "dims"}))
def test_every_strategy_is_named(name):
    assert f"pst.{name}" in TEXT


def test_every_strategy_in_the_text_exists():
    assert set(re.findall(r"pst\.(\w+)", TEXT)) <= set(DRAWN)


def test_value_classes():
    assert re.findall(r"^\| `(\w+)` \|", TEXT, re.MULTILINE) == list(CLASSES)
