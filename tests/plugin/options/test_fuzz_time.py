"""--pallas-fuzz-time: rounds of fuzzing until the time is over, with a line of progress."""

import re

import pytest

from pytest_pallas.report import reporter as progress
from pytest_pallas.run import item as time_budget

SPEC = 'name="add", kernel=add, inputs=pst.arrays("m n, m n", around=[8, 16, 32])'
WRONG = 'name="add_off", kernel=add_off'


def test_every_item_fuzzes_for_its_share(project, monkeypatch, clock):
    slots = []
    slot = time_budget.TimeBudget.slot
    monkeypatch.setattr(
        time_budget.TimeBudget, "slot", lambda *args: slots.append(slot(*args)) or slots[-1]
    )
    project.specs(SPEC)
    records = project.records(
        "--pallas-suite=specs",
        "--pallas-backend=tpu-sim",
        "--pallas-checks=forward,determinism",
        "--pallas-fuzz-time=1",
        "--pallas-max-examples=1",
    )
    assert {record["outcome"] for record in records} == {"passed"}
    assert [record["examples"] > 1 for record in records] == [True, True]
    # The first item looks at the clock after the end of its time, too.
    assert slots == [pytest.approx(0.5, abs=0.05), pytest.approx(0.45, abs=0.1)]
    assert 1.0 <= clock() < 1.5


#: Makes pytest take its output for a terminal.
TERMINAL = """
    import pytest

    @pytest.hookimpl(trylast=True)
    def pytest_configure(config):
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        reporter.isatty = type(reporter.isatty)(True)  # pytest 9 calls it, 8.4 does not
"""


@pytest.mark.parametrize(("conftest", "option"), [(TERMINAL, "-v"), (TERMINAL, "-q"), ("", "-v")])
@pytest.mark.usefixtures("clock")
def test_a_line_says_how_far_it_is_on_a_terminal(project, monkeypatch, conftest, option):
    monkeypatch.setattr(progress, "LEAST", 0.1)
    project.write(conftest=conftest)
    project.specs(SPEC)
    result = project.run(
        "--pallas-suite=specs",
        "--pallas-backend=tpu-sim",
        "--pallas-checks=forward",
        "--pallas-fuzz-time=1",
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


def test_a_failure_ends_an_item(project, clock):
    project.specs(WRONG)
    records = project.records(
        "--pallas-suite=specs",
        "--pallas-backend=tpu-sim",
        "--pallas-checks=forward",
        "--pallas-fuzz-time=300",
    )
    assert [record["outcome"] for record in records] == ["failed"]
    assert clock() < 300
