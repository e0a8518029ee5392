"""docs/migrating.md: its tests pass, before and after; mistakes pass before, and fail after."""

import os
import re
from pathlib import Path

import pytest

PAGE = "docs/migrating.md"
TEXT = (Path(__file__).parents[2] / PAGE).read_text()
NAMES = ("softmax", "matmul", "shift")

WAIT = "    pl.semaphore_wait(barrier, 2)\n"
COPY = """    copy = pltpu.make_async_remote_copy(x_ref, o_ref, sent, received, device_id=(right,))
    copy.start()
"""

#: The test, what of the kernels is replaced by what, and what the page says of it afterwards.
MISTAKES = {
    "no mask": (
        "softmax",
        "x = jnp.where(inside, x_ref[...].astype(jnp.float32), -jnp.inf)",
        "x = x_ref[...].astype(jnp.float32)",
        "NaN where the oracle is finite",
    ),
    "narrow sums": (
        "matmul",
        "pltpu.VMEM((block, block), jnp.float32)",
        "pltpu.VMEM((block, block), x.dtype)",
        "must be exactly equal",
    ),
    "late wait": (
        "shift",
        WAIT + COPY,
        COPY + WAIT,
        "nothing orders that with the point at which device 1 has entered the kernel",
    ),
    "one neighbor": (
        "shift",
        "pl.semaphore_wait(barrier, 2)",
        "pl.semaphore_wait(barrier, 1)",
        "the barrier semaphore of device 0 ends with 1 that no wait took",
    ),
}


@pytest.fixture
def run(blocks, pytester, monkeypatch):
    """Run the test of one kernel, before or after, with a change of the kernels."""
    files = dict(blocks(PAGE))
    # A test sets it, and this process has as many devices already.
    monkeypatch.setenv("XLA_FLAGS", os.environ.get("XLA_FLAGS", ""))

    def run(name, when, right="", wrong=""):
        assert right in files["kernels.py"]
        (pytester.path / "kernels.py").write_text(files["kernels.py"].replace(right, wrong))
        test = f"test_{name}_{when}.py"
        (pytester.path / test).write_text(files[test])
        plain = ["-p", "no:pallas"] if when == "before" else ["--pallas-max-examples=4"]
        first = ["-x"] * bool(right)  # a mistake is found once
        return pytester.runpytest_inprocess("-p", "no:cacheprovider", *first, *plain, test)

    return run


def failed(result):
    return result.parseoutcomes().get("failed", 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("when", ["before", "after"])
def test_passes(run, name, when):
    result = run(name, when)
    assert result.parseoutcomes()["passed"]
    assert not failed(result)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_test_by_hand_lets_the_mistake_pass(run, mistake):
    name, right, wrong, _ = MISTAKES[mistake]
    assert not failed(run(name, "before", right, wrong))


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_other_test_finds_the_mistake(run, mistake):
    name, right, wrong, words = MISTAKES[mistake]
    result = run(name, "after", right, wrong)
    assert failed(result)
    assert words in result.stdout.str()
    assert f"`{words}` |" in TEXT
    assert f"`{wrong.splitlines()[-1].strip()}`" in TEXT


def test_every_block_of_the_page_is_run(blocks):
    names = [f"test_{name}_{when}.py" for name in NAMES for when in ("before", "after")]
    assert [name for name, _ in blocks(PAGE)] == [*names, "kernels.py"]


def test_every_mistake_of_the_page_is_tried():
    tables = re.findall(r"^\| a mistake .*\n.*\n((?:\|.*\n)+)", TEXT, re.MULTILINE)
    assert sum(len(table.splitlines()) for table in tables) == len(MISTAKES)
