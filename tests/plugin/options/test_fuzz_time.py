"""--pallas-fuzz-time: rounds of fuzzing until the time is over, with a line of progress."""

import re

import pytest

SPEC = 'name="add", kernel=add, inputs=pst.arrays("m n, m n", around=[8, 16, 32])'
WRONG = 'name="add_off", kernel=add_off'


def test_every_item_fuzzes_for_its_share(project):
    project.specs(SPEC)
    records = project.records(
        "--pallas-suite=specs",
        "--pallas-backend=tpu-sim",
        "--pallas-checks=forward,determinism",
        "--pallas-fuzz-time=5",
        "--pallas-max-examples=1",
    )
    assert {record["outcome"] for record in records} == {"passed"}
    for record in records:
        assert record["examples"] > 1
        assert record["seconds"] > 1.0


#: Makes pytest take its output for a terminal.
TERMINAL = """
    import pytest

    @pytest.hookimpl(trylast=True)
    def pytest_configure(config):
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter.isatty = type(reporter.isatty)(True)  # pytest 9 calls it, 8.4 does not
"""


@pytest.mark.parametrize(
    ("conftest", "option", "seconds"), [(TERMINAL, "-v", 2), (TERMINAL, "-q", 1), ("", "-v", 1)]
)
def test_a_line_says_how_far_it_is_on_a_terminal(project, monkeypatch, conftest, option, seconds):
    from pytest_pallas.report import progress

    monkeypatch.setattr(progress, "LEAST", 0.1)
    project.write(conftest=conftest)
    project.specs(SPEC)
    result = project.run(
        "--pallas-suite=specs",
        "--pallas-backend=tpu-sim",
        "--pallas-checks=forward",
        f"--pallas-fuzz-time={seconds}",
        "--pallas-max-examples=1",
        option,
    )
    line = r"pallas: \d of \d s, \d s left, [\d,]+ examples, .*, no failures"
    lines = re.findall(line, result.stdout.str())
    if conftest and option == "-v":
        assert "; now add-forward[tpu-sim]" in result.stdout.str()
        assert 1 <= len(lines) <= 11
    else:
        assert lines == []


def test_a_failure_ends_an_item(project):
    project.specs(WRONG)
    records = project.records(
        "--pallas-suite=specs",
        "--pallas-backend=tpu-sim",
        "--pallas-checks=forward",
        "--pallas-fuzz-time=300",
    )
    assert [record["outcome"] for record in records] == ["failed"]
    assert records[0]["seconds"] < 60
