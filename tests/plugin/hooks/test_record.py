"""``pytest_pallas_record``."""

from __future__ import annotations


def test_every_record_once(project):
    project.specs('name="good", kernel=add', 'name="bad", kernel=add_off')
    project.write(
        conftest="""
        def pytest_pallas_record(config, record):
            with open("records.txt", "a") as file:
                file.write(f"{record.kernel} {record.check} {record.outcome}\\n")
        """
    )
    project.run(
        "--pallas-suite=specs",
        "--pallas-backend=tpu-sim",
        "--pallas-max-examples=1",
        "--pallas-checks=forward,determinism",
    )
    lines = (project.path / "records.txt").read_text().splitlines()
    assert sorted(lines) == [
        "bad determinism passed",
        "bad forward failed",
        "good determinism passed",
        "good forward passed",
    ]
