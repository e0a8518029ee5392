"""docs/orders.md: its kernel is found in the words that it shows."""

import re
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

TEXT = (Path(__file__).parents[2] / "docs/orders.md").read_text()


def shown(name):
    found = plain(re.search(rf"<!-- output: {name} -->\n```text\n(.*?)```", TEXT, re.DOTALL)[1])
    # The steps of the order are indented further.
    return [line for line in found.splitlines() if not line.startswith(" " * 12)]


def plain(text):
    """Without what differs between versions: digests of calls, witnesses, numbers of runs."""
    text = re.sub(r"\b1-v6e-[0-9a-f]{8}[-.\d]*", "WITNESS", text)
    text = re.sub(r"\b[0-9a-f]{8}\b", "DIGEST", text)
    return re.sub(r"\d+(?= of at least| runs)|(?<=at least )\d+", "N", text)


@pytest.fixture(scope="module")
def folder(blocks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("orders")
    for name, block in blocks("docs/orders.md"):
        (folder / name).write_text(block)
    return folder


@pytest.fixture(scope="module")
def run(folder):
    def run(*options):
        options = ("-p", "no:cacheprovider", "--pallas-backend=tpu-sim", *options)
        done = run_python("-m", "pytest", *options, cwd=folder)
        return re.sub(r"(?m)^E   ", "", done.stdout).replace(f"{folder.resolve()}/", "")

    return run


def test_an_order_is_found_and_runs_again(run):
    printed = run()
    for name in ("wrong", "verdicts"):
        for line in shown(name):
            assert line in plain(printed), line
    [command] = re.findall(r"^    pytest (.*--pallas-witness.*)$", TEXT, re.MULTILINE)
    [replay] = re.findall(r"^replay: pytest (.*)$", printed, re.MULTILINE)
    assert plain(command) == plain(replay)
    assert re.search(r"^ +> .* is late$", printed, re.MULTILINE)
    *_, witness, test = replay.split()
    again = run(witness, test.strip("'"))
    assert "1 failed in" in again
    for line in shown("wrong"):
        assert line in plain(again), line


def test_what_is_open(run):
    printed = run("--pallas-schedules=2")
    for line in shown("open"):
        assert line in plain(printed), line


def test_a_witness_of_another_call(run):
    options = ("-k", "eager and not integers", "--pallas-witness=1-v6e-00000000-11.1")
    assert shown("another")[0] in plain(run(*options))
