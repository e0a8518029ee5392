"""Results of workers in a file of ``--pallas-resume`` are read as data."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from pallas_test_support.hostile_files import EVIL, write_right

from pytest_pallas.distribute.fleet.ledger import KeptResults
from pytest_pallas.results import read_results

pytest.importorskip("safetensors")


def kept(resumed):
    """What a fleet keeps of a run that is taken up."""
    return KeptResults(
        SimpleNamespace(
            pluginmanager=SimpleNamespace(get_plugin=lambda _: SimpleNamespace(resumed=resumed)),
            getoption=lambda _: "results.json",
        )
    )


@pytest.mark.parametrize("kind", ["results", "journal"])
def test_right_results_are_kept(kind, tmp_path):
    results = read_results(write_right(tmp_path)[kind])
    results_kept = kept(results)
    assert list(results_kept.whole()) == []
    assert [result.nodeid for result in results_kept._resumed["left"]] == ["left", "left"]


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("TestResult", EVIL, "has no object with message, fields"),
        (f"goldens/{'0' * 64}.json", "../../evil.py", "must be the name of a golden"),
        ('"lineno", 3', f'"lineno", "{EVIL}"', "must be an integer"),
        (
            '"outcome", "failed"',
            '"toterminal", "x"',
            "has the field 'toterminal', which is not known",
        ),
        ('"start", 1.0', '"toterminal", 1.0', "has the field 'toterminal', which no report"),
        ('"save"', '"execute"', "must be one of 'save', 'delete'"),
    ],
)
def test_wrong_ones_are_a_usage_error_in_one_line(right, wrong, message, tmp_path):
    path = write_right(tmp_path)["results"]
    text = path.read_text()
    assert right in text
    path.write_text(text.replace(right, wrong))
    with pytest.raises(pytest.UsageError, match=r"^--pallas-resume: .*the parts of left") as caught:
        kept(read_results(path))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert EVIL not in sys.modules
