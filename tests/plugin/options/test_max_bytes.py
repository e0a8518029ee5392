"""``--pallas-max-bytes``."""

from __future__ import annotations

import shlex

from pytest_pallas.budget import DEFAULT_MAX_BYTES
from pytest_pallas.options import Options

SPEC = (
    'name="add", kernel=add, inputs=pst.arrays("m n, m n", dtype="float32", '
    'dims={"m": [8, 64], "n": [128, 256]})'
)
RUN = ("--pallas-backend=tpu-sim", "--pallas-suite=specs", "--pallas-checks=forward")

GIVEN = """
    from hypothesis import given, settings
    from pytest_pallas import strategies as pst

    @settings(max_examples=40)
    @given(args=pst.arrays("m k, k n", dtype="float32", around=32))
    def test_draw(args):
        with open("bytes.txt", "a") as file:
            file.write(f"{sum(array.nbytes for array in args)}\\n")
"""


def drawn(project) -> list[int]:
    path = project.path / "bytes.txt"
    numbers = [int(line) for line in path.read_text().splitlines()]
    path.unlink()
    return numbers


def test_tests_of_ones_own(project):
    project.write(test_draw=GIVEN)
    project.run("--pallas-max-bytes=8KiB").assert_outcomes(passed=1)
    assert 4_096 < max(drawn(project)) <= 8_192
    project.ini(pallas_max_bytes="8192")
    project.run().assert_outcomes(passed=1)
    assert 4_096 < max(drawn(project)) <= 8_192
    project.run("--pallas-max-bytes=1GiB").assert_outcomes(passed=1)
    assert max(drawn(project)) > 16_000  # and no run leaves its limit behind


def test_specs_draw_within_the_limit(project):
    """The smallest call has 8 KiB, and the largest 128 KiB."""
    project.specs(SPEC)
    (record,) = project.records(*RUN, "--pallas-max-bytes=16KiB")
    assert record["outcome"] == "passed"
    assert record["examples"] > 1


def test_workers_of_xdist_keep_to_it(project):
    project.write(test_draw=GIVEN)
    project.run("-n1", "--pallas-max-bytes=8KiB").assert_outcomes(passed=1)
    assert 4_096 < max(drawn(project)) <= 8_192


def test_a_spec_whose_smallest_call_is_too_large(project):
    project.specs(SPEC)
    result = project.run(*RUN, "--pallas-max-bytes=4KiB")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*spec 'add' in *--pallas-max-bytes=4KiB is too small*"])
    assert "Traceback" not in result.stdout.str()


def test_a_test_whose_smallest_call_is_too_large(project):
    project.write(test_draw=GIVEN.replace("around=32", "dims={'m': 64}"))
    result = project.run("--pallas-max-bytes=256")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*DrawTooLargeError: *--pallas-max-bytes=256 is too small*"])


def test_strategies_have_the_same_default():
    assert Options.max_bytes == DEFAULT_MAX_BYTES


def test_a_failure_is_replayed_within_it(project):
    project.specs(SPEC.replace("kernel=add", "kernel=add_off"))
    text = project.run(*RUN, "--pallas-max-bytes=16KiB").stdout.str()
    (line,) = [line for line in text.splitlines() if line.lstrip().startswith("replay")]
    words = shlex.split(line)[2:]
    assert "--pallas-max-bytes=16KiB" in words
    again = project.run(*words)
    again.assert_outcomes(failed=1)
    assert "is no example" not in again.stdout.str()
