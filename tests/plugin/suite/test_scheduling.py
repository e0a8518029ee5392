"""Under pytest-xdist, one worker asks all checks of a kernel."""

import json

KERNELS = """
import json, os
from pathlib import Path

from kernels import reference

def noted(name):
    def called(x, y):
        with Path("asked.jsonl").open("a") as file:
            file.write(json.dumps([name, os.getpid()]) + chr(10))
        return reference(x, y)
    return called
"""


def test_one_worker_asks_all_checks_of_a_kernel(project):
    project.write(noting=KERNELS)
    project.specs(
        *(
            f'name="{name}", kernel=add, reference=__import__("noting").noted("{name}")'
            for name in ("one", "two", "three", "four")
        )
    )
    checks = "forward,oracle-strength,dtype"
    args = (f"--pallas-checks={checks}", "--pallas-backend=tpu-sim", "--pallas-max-examples=1")
    project.run("--pallas-suite=specs", *args, "-n2")
    lines = (project.path / "asked.jsonl").read_text().splitlines()
    workers = {name: set() for name, _ in map(json.loads, lines)}
    for name, worker in map(json.loads, lines):
        workers[name].add(worker)
    assert [len(each) for each in workers.values()] == [1, 1, 1, 1]
    assert len(set.union(*workers.values())) == 2
