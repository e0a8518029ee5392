"""The README's example, and what it says of the main job; docs/backends.md, docs/verified.md."""

import re
from pathlib import Path

from pallas_test_support.forked_python import run_python

from pytest_pallas.run.collection import suite

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
VERIFIED = "docs/verified.md"


def output(name, page="README.md"):
    text = (ROOT / page).read_text()
    return re.search(rf"<!-- output: {name} -->\n```\w+\n(.*?)```", text, re.DOTALL)[1]


def run(folder, *options):
    return run_python("-m", "pytest", "-p", "no:cacheprovider", *options, cwd=folder)


def test_the_example_fails_as_the_readme_shows(blocks, tmp_path):
    name, block = blocks("README.md")[0]
    assert name == "test_softmax.py"
    (tmp_path / name).write_text(block)
    done = run_python("-m", "pytest", cwd=tmp_path)  # with the cache, which has the scripts
    assert done.returncode == 1
    printed = done.stdout.replace(f"{tmp_path}/", "")
    for line in output("softmax").splitlines():
        # Floating-point digits are the machine's.
        if not re.search(r"oracle  |baseline  ", line):
            assert line in printed, line


def test_the_usage_error_is_the_one_shown(tmp_path):
    done = run(tmp_path, "--pallas-backend=tpu")
    assert done.returncode == 4
    assert "Traceback" not in done.stdout + done.stderr
    shown_lines = output("tpu", "docs/backends.md").splitlines()
    (shown,) = [line for line in shown_lines if line.startswith("ERROR")]
    # Which compilers there are is the machine's.
    assert shown.partition(", tpu-compile")[0] in done.stdout + done.stderr


def test_the_suite_that_is_chosen_has_the_kernels_that_are_shown():
    shown = output("matmul", "docs/backends.md")
    [command] = re.findall(r"^\$ uv run pytest (.*)$", shown, re.MULTILINE)
    few = ["--pallas-max-examples=1", "--pallas-checks=forward"]
    done = run(ROOT, *command.split(), *few)
    assert done.returncode == 0, done.stdout
    tables = [text[text.index("\nkernel ") :] for text in (shown, done.stdout)]
    rows = [re.findall(r"^(?:kernel|matmul\w*) +\S+", table, re.MULTILINE) for table in tables]
    assert sorted(row.split()[0] for row in rows[0]) == sorted(row.split()[0] for row in rows[1])
    assert "tpu-sim:v6e" in rows[0][0]
    assert "tpu-sim:v6e" in rows[1][0]


def test_the_example_is_about_ten_lines(blocks):
    _, block = blocks("README.md")[0]
    test = block[block.index("@given") :]
    assert len(test.strip().splitlines()) <= 10


def test_the_readme_is_short():
    assert len(README.splitlines()) < 150


def test_the_main_job_is_of_all_kernels():
    import pkgutil

    import reference_kernels
    from pytest_pallas.run.collection import specs_in

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
    main = output("main", VERIFIED)
    shown, more = re.search(
        r"^kernel .*?\n(.*)^\.\.\. and (\d+) more kernels", main, re.DOTALL | re.MULTILINE
    ).groups()
    names = {line.split()[0] for line in shown.splitlines() if line.startswith(" ")}
    assert len(names) > 10
    assert names < kernels
    assert len(names) + int(more) == len(kernels)
    assert "FAILED" not in main


def test_the_main_job_reaches_all_of_the_kernels():
    [(gone, ways)] = re.findall(r"^coverage: (.*) of (.*) ways", output("main", VERIFIED), re.M)
    assert gone == ways
    assert "quick --pallas-coverage-min=100\n" in (ROOT / ".ci/run").read_text()


def test_what_the_kernels_leave_out_is_listed():
    specs = suite("reference_kernels").specs()
    rows = [
        f"| `{spec.name}` | `{key}` | {reason} |"
        for spec in specs
        for key, reason in spec.unreached.items()
    ]
    section = (ROOT / VERIFIED).read_text().partition("## What of the kernels runs")[2]
    assert re.findall(r"^\| `.*$", section, re.MULTILINE) == rows


def test_the_readme_says_what_the_main_job_printed():
    main = output("main", VERIFIED)
    passed, seconds = re.search(r"(\d+) passed.* in (\d+)\.\d+s", main).groups()
    [kernels] = re.findall(r"inputs: (\d+) kernels", main)
    words = f"{int(passed):,} checks of {kernels} kernels pass in {seconds} seconds"
    assert words in README.replace("\n", " ")


def test_both_commands_are_the_same_on_both_pages():
    commands = re.findall(r"^\s*(pip install uv && .*)$", README, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert command in (ROOT / VERIFIED).read_text()
