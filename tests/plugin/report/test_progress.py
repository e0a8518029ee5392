"""A line now and then in long runs: on a terminal, and only where nothing else says what runs."""

from __future__ import annotations

import re

import pytest

RUN = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward,determinism",
       "--pallas-max-examples=1")  # fmt: skip


@pytest.fixture
def long(project, monkeypatch):
    """A run that counts as long, on a terminal."""
    from pytest_pallas.report import reporter as progress

    monkeypatch.setattr(progress, "SELDOM", 0.0)
    project.specs('name="good", kernel=add', 'name="bad", kernel=add_off')
    project.write(
        conftest="""
        import pytest

        @pytest.hookimpl(trylast=True)
        def pytest_configure(config):
            reporter = config.pluginmanager.get_plugin("terminalreporter")
            reporter.isatty = type(reporter.isatty)(True)  # pytest 9 calls it, 8.4 does not
        """
    )
    return project


def lines(result):
    return re.findall(r"pallas: \d+ s, .*", result.stdout.str())


def test_on_a_terminal(long):
    found = [re.sub(r"\d+ s,", "N s,", line) for line in lines(long.run(*RUN))]
    assert found == [
        "pallas: N s, 1 of 4 tests, no failures; now good-determinism[tpu-sim]",
        "pallas: N s, 2 of 4 tests, no failures; now bad-forward[tpu-sim]",
        "pallas: N s, 3 of 4 tests, 1 failure; now bad-determinism[tpu-sim]",
    ]


@pytest.mark.parametrize("option", ["-q", "-v", "-vv"])
def test_not_where_names_are_shown_or_quiet_was_asked_for(long, option):
    assert lines(long.run(*RUN, option)) == []


def test_not_in_a_file(long):
    (long.path / "conftest.py").unlink()
    assert lines(long.run(*RUN)) == []


def test_not_without_kernels(long):
    long.write(test_a="def test_a(): pass\n\ndef test_b(): pass")
    assert lines(long.run("test_a.py")) == []


def test_not_in_a_short_run(long, monkeypatch):
    from pytest_pallas.report import reporter as progress

    monkeypatch.setattr(progress, "SELDOM", 30.0)
    assert lines(long.run(*RUN)) == []
