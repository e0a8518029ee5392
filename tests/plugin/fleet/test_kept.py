"""A controller that is killed in the middle of a test: what its parts have found is kept."""

from __future__ import annotations

import json
import shutil

from tests.plugin.fleet.test_parts import CONFTEST, SELDOM, without_times
from tests.plugin.mutate.test_specs import KERNELS, SPECS

from pytest_pallas.__main__ import main

#: The controller is killed once some results were kept.
KILLED = """
    import os
    import signal

    from pytest_pallas.fleet import kept

    from pytest_pallas.items.parts import result_of

    class Killed(kept.KeptResults):
        def keep(self, result):
            super().keep(result)
            found = result_of(result.reports)
            with open("log", "a") as log:
                for each in found.get("rounds", [{"number": found.get("first")}]):
                    log.write(f"{result.nodeid} {each['number']}\\n")
            if os.path.exists("kill"):
                left = int(open("kill").read()) - 1
                open("kill", "w").write(str(left))
                if not left:
                    os.unlink("kill")
                    os.kill(os.getpid(), signal.SIGKILL)

    from pytest_pallas.fleet import runner

    runner.KeptResults = Killed
"""


def killed_and_resumed(project, results, *args):
    """The records of one process, which are those of a fleet that was killed and resumed, too."""
    words = ("--pallas-backend=tpu-sim", "--pallas-results=r.json", *args)
    project.spawn(*words)  # the conftest changes modules
    whole = json.loads((project.path / "r.json").read_text())["records"]
    for folder in (".hypothesis", "pallas-failures"):
        shutil.rmtree(project.path / folder, ignore_errors=True)
    (project.path / "r.json").unlink()
    (project.path / "kill").write_text(str(results))
    fleet = ("--pallas-fleet=local:1",)
    assert project.spawn(*words, *fleet).ret == -9
    lines = (project.path / "r.json.partial").read_text().splitlines()
    assert sum(line.startswith('{"part_of"') for line in lines) == results
    # What reads and writes results keeps the parts.
    main(["merge", str(project.path / "r.json"), "-o", str(project.path / "r.json")])
    resumed = project.spawn(*words, *fleet, "--pallas-resume=r.json")
    found = json.loads((project.path / "r.json").read_text())
    assert without_times(found["records"]) == without_times(whole)
    assert not any("parts" in test for test in found["tests"])
    done = (project.path / "log").read_text().splitlines()
    assert len(set(done)) == len(done) > results  # none ran twice
    return resumed.stdout.str()


def test_rounds(project):
    project.write(conftest=CONFTEST + KILLED, seldom=SELDOM)
    args = ("--pallas-suite=seldom", "--pallas-checks=forward", "--pallas-sanitize=none")
    args += ("--pallas-max-examples=2", "--pallas-fuzz-rounds=4", "-k", "add-forward")
    text = killed_and_resumed(project, 2, *args)
    assert "resumed: 0 of 1 tests were done, and 2 parts of others" in text


def test_mutants(project):
    first = SPECS % ("8", "")
    second = (SPECS % ("12, 24", "")).replace('"rows"', '"second"').partition("    SPEC = ")[2]
    specs = f"{first}\n    SECOND = {second}"
    project.write(conftest=CONFTEST + KILLED, kernels=KERNELS, specs=specs)
    args = ("--pallas-suite=specs", "--pallas-mutate=all", "--pallas-max-examples=1")
    killed_and_resumed(project, 2, *args)
