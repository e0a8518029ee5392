"""docs/kernels: the examples of every page pass, and what it shows of a kernel stands there."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(page.name for page in (ROOT / "docs/kernels").glob("*.md"))
NUMBERED = [page for page in PAGES if page[0].isdigit()]

#: The first line of a block that shows a piece of a file.
EXCERPT = re.compile(r"# ((?:reference_kernels|examples)/[\w/]+\.py)\n")

#: Between two pieces of one block.
LEFT_OUT = re.compile(r"^ *# \.\.\.\n", re.MULTILINE)


def python_blocks(page):
    text = (ROOT / "docs/kernels" / page).read_text()
    return re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)


@pytest.mark.parametrize("page", NUMBERED)
def test_examples_pass(page, pytester):
    named = {}
    for block in python_blocks(page):
        if EXCERPT.match(block):
            continue
        name = re.match(r"# (\w+\.py)\n", block)
        assert name, f"a block of {page} names no file:\n{block}"
        named[name.group(1)] = block
    for name, block in named.items():
        (pytester.path / name).write_text(block)
    outcomes = pytester.runpytest_inprocess("-p", "no:cacheprovider").parseoutcomes()
    assert outcomes.pop("passed", 0)
    assert set(outcomes) <= {"skipped", "warnings"}, outcomes


@pytest.mark.parametrize("page", NUMBERED)
def test_what_is_shown_of_a_kernel_stands_in_its_file(page):
    for block in python_blocks(page):
        if not (found := EXCERPT.match(block)):
            continue
        source = (ROOT / found.group(1)).read_text()
        for piece in LEFT_OUT.split(block[found.end() :]):
            lines = textwrap.dedent(piece).strip()
            spaces = {re.match(" *", line).group() for line in source.splitlines()}
            shown = [textwrap.indent(lines, space) for space in spaces]
            assert any(text in source for text in shown), f"not in {found.group(1)}:\n{lines}"


def test_the_index_names_every_page():
    text = (ROOT / "docs/kernels/README.md").read_text()
    assert re.findall(r"\]\((\d[\w-]+\.md)\)", text) == NUMBERED
