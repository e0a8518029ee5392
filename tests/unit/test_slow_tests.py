"""The tier of slow tests, as this repository's own conftest.py keeps it."""

from __future__ import annotations

from pathlib import Path

import pytest

SUITE = """
    import pytest

    def test_quick(): ...

    @pytest.mark.slow
    def test_slow(): ...
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    conftest = (Path(__file__).parents[2] / "conftest.py").read_text()
    hooks = conftest[
        conftest.index("_TESTS_PER_SLOW") : conftest.index("def pytest_collection_finish")
    ]
    pytester.makeconftest("import pytest\n" + hooks)
    pytester.makeini("[pytest]\nmarkers = slow: runs with --slow only")
    pytester.makepyfile(SUITE)
    return pytester


def test_slow_tests_run_only_when_asked_for(suite: pytest.Pytester) -> None:
    suite.runpytest_inprocess("-p", "no:pallas").assert_outcomes(passed=1, deselected=1)
    suite.runpytest_inprocess("-p", "no:pallas", "--slow").assert_outcomes(passed=2)


def test_more_than_a_twentieth_of_slow_tests_is_an_error(suite: pytest.Pytester) -> None:
    with suite.path.joinpath("conftest.py").open("a") as conftest:
        conftest.write("\n_MANY = 50\n")
    suite.makepyfile(
        test_many="""
        import pytest

        @pytest.mark.parametrize("n", range(95))
        def test_quick(n): ...

        @pytest.mark.slow
        @pytest.mark.parametrize("n", range(6))
        def test_slow(n): ...
        """
    )
    result = suite.runpytest_inprocess("-p", "no:pallas", "--collect-only", "-q")
    result.stderr.fnmatch_lines(["*7 of 103 tests are slow, more than 5 %*"])
