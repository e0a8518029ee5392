"""``pytest_pallas_record``."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize("args", [(), ("-n2",)], ids=["one process", "xdist"])
def test_every_record_once_in_the_process_that_reports(project, args):
    project.specs('name="good", kernel=add', 'name="bad", kernel=add_off')
    project.write(
        conftest="""
        def pytest_pallas_record(config, record):
            assert not hasattr(config, "workerinput")
            with open("records.txt", "a") as file:
                file.write(f"{record.kernel} {record.check} {record.outcome}\\n")
        """
    )
    project.run(
        "--pallas-suite=specs",
        "--pallas-backend=tpu-sim",
        "--pallas-max-examples=1",
        "--pallas-checks=forward,determinism",
        *args,
    )
    lines = (project.path / "records.txt").read_text().splitlines()
    assert sorted(lines) == [
        "bad determinism passed",
        "bad forward failed",
        "good determinism passed",
        "good forward passed",
    ]
