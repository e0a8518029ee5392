"""The README's example, and what it says that the plugin prints."""

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def output(name):
    return re.search(rf"<!-- output: {name} -->\n```\w+\n(.*?)```", README, re.DOTALL)[1]


def run(folder, *options):
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_example_fails_as_the_readme_shows(blocks, tmp_path):
    name, block = blocks("README.md")[0]
    assert name == "test_softmax.py"
    (tmp_path / name).write_text(block)
    done = run(tmp_path)
    assert done.returncode == 1
    for line in output("softmax").splitlines():
        # Floating-point digits are the machine's.
        if not re.search(r"oracle  |baseline  ", line):
            assert line in done.stdout, line


def test_the_usage_error_is_the_one_shown(tmp_path):
    done = run(tmp_path, "--pallas-backend=tpu")
    assert done.returncode == 4
    assert "Traceback" not in done.stdout + done.stderr
    (shown,) = [line for line in output("tpu").splitlines() if line.startswith("ERROR")]
    # Which compilers there are is the machine's.
    assert shown.partition(", tpu-compile")[0] in done.stdout + done.stderr


def test_the_example_is_about_ten_lines(blocks):
    _, block = blocks("README.md")[0]
    test = block[block.index("@given") :]
    assert len(test.strip().splitlines()) <= 10


def test_the_main_job_is_of_all_kernels():
    import pkgutil

    import reference_kernels
    from pytest_pallas.collection.discovery import specs_in

    names = [
        m.name for m in pkgutil.walk_packages(reference_kernels.__path__, "reference_kernels.")
    ]
    kernels = {
        spec.name
        for name in names
        for spec in specs_in(name)
        # What is only compiled has no test in that job.
        if any("interpret" in backend or "sim" in backend for backend in spec.claimed)
    }
    shown, more = re.search(
        r"^kernel .*?\n(.*)^\.\.\. and (\d+) more kernels", output("main"), re.DOTALL | re.MULTILINE
    ).groups()
    names = {line.split()[0] for line in shown.splitlines() if line.startswith(" ")}
    assert len(names) > 10
    assert names < kernels
    assert len(names) + int(more) == len(kernels)
    assert "FAILED" not in output("main")
