"""Tests that ended, from reports, and as reports again."""

from __future__ import annotations

import json

import pytest

from pytest_pallas.decoding import decode
from pytest_pallas.distribute.resume import EndedTests, reports_of
from pytest_pallas.results import FinishedTest, plain_test

TESTS = """
    import pytest

    @pytest.fixture
    def no_setup():
        raise ValueError("set up")

    @pytest.fixture
    def no_teardown():
        yield
        raise ValueError("torn down")

    def test_passes(record_property):
        record_property("own", 3)

    def test_fails():
        print("captured")
        assert 0

    def test_fails_twice(no_teardown):
        assert 0

    def test_setup(no_setup): pass
    def test_teardown(no_teardown): pass

    @pytest.mark.skip(reason="not now")
    def test_skipped(): pass

    def test_skips():
        pytest.skip("during the call")

    @pytest.mark.xfail(reason="known")
    def test_xfails():
        assert 0

    @pytest.mark.xfail(reason="fixed")
    def test_xpasses(): pass

    @pytest.mark.xfail(strict=True, reason="fixed")
    def test_strict(): pass
"""

OUTCOMES = {
    "test_passes": "passed", "test_fails": "failed", "test_fails_twice": "failed",
    "test_setup": "error", "test_teardown": "error", "test_skipped": "skipped",
    "test_skips": "skipped", "test_xfails": "xfailed", "test_xpasses": "xpassed",
    "test_strict": "failed",
}  # fmt: skip


def shown(reports):
    """What terminal and JUnit make of reports: each outcome that counts, with its text."""
    return [
        (
            each.failed and each.when != "call",
            each.outcome,
            getattr(each, "wasxfail", None) or str(each.longrepr),
            each.failed and getattr(getattr(each.longrepr, "reprcrash", None), "message", None),
        )
        for each in reports
        if each.outcome != "passed" or each.when == "call"
    ]


@pytest.fixture
def reports(pytester):
    pytester.makepyfile(test_it=TESTS)
    found = {}

    class Plugin:
        def pytest_runtest_logreport(self, report):
            found.setdefault(report.nodeid.partition("::")[2], []).append(report)

    pytester.inline_run("-p", "no:jaxtyping", plugins=[Plugin()])
    assert list(found) == list(OUTCOMES)
    return found


def test_reports_are_joined_and_made_again(reports):
    for name, outcome in OUTCOMES.items():
        ended = EndedTests()
        *first, last = reports[name]
        assert not any(map(ended.add, first))
        found = ended.add(last)
        assert found is not None
        test, records = found
        assert (test.outcome, records) == (outcome, []), name
        again = decode(FinishedTest, json.loads(json.dumps(plain_test(test))))
        assert again == test
        made = list(reports_of(again, []))
        assert shown(made) == shown(reports[name]), name
        assert made[-1].user_properties == last.user_properties
        assert made[-1].when == "teardown"
        assert {each.nodeid for each in made} == {last.nodeid}


def test_what_was_captured_is_kept(reports):
    ended = EndedTests()
    test = [ended.add(each) for each in reports["test_fails"]][-1][0]
    assert ("Captured stdout call", "captured\n") in test.failures[0].sections


def test_a_worker_of_xdist_that_died():
    report = pytest.TestReport(
        nodeid="a.py::test", location=("a.py", None, "a.py"), keywords={}, outcome="failed",
        longrepr="worker 'gw0' crashed", when="???",
    )  # fmt: skip
    found = EndedTests().add(report)
    assert found is not None
    assert found[0].outcome == "failed"
    [first, _] = reports_of(found[0], [])
    assert (first.when, first.longrepr) == ("call", "worker 'gw0' crashed")


def test_a_failure_that_is_tried_again_is_none():
    """As pytest-rerunfailures reports it."""
    ended = EndedTests()
    outcomes = [("setup", "passed"), ("call", "rerun"), ("setup", "passed"), ("call", "passed")]
    for when, outcome in (*outcomes, ("teardown", "passed")):
        report = pytest.TestReport("a.py::test", ("a.py", 1, "test"), {}, outcome, None, when)
        found = ended.add(report)
    assert found is not None
    assert found[0].outcome == "passed"
