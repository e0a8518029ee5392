"""The summary table."""

from __future__ import annotations

import re

import pytest

from pytest_pallas.report import terminal as results

RUN = ("--pallas-suite=specs", "--pallas-backend=interpret,tpu-sim:v5e,gpu-interpret",
       "--pallas-checks=forward,determinism", "--pallas-max-examples=2")  # fmt: skip


@pytest.fixture
def mixed(project):
    """Every outcome that a record can have."""
    project.specs(
        'name="good", kernel=add, exact=False',
        'name="wrong", kernel=add_off',
        'name="refused", kernel=add_raises, xfail={"interpret": ExpectedFailure('
        'reason="#12", jax="0.12"), "tpu-sim": ExpectedFailure(reason="#12", jax="0.12")}',
        'name="mended", kernel=add, xfail={"tpu-sim:v5e": ExpectedFailure('
        'reason="#13", jax="0.12", checks=("forward",))}',
    )
    return project


def table(result: pytest.RunResult) -> list[str]:
    """The lines of the section, without times."""
    lines = result.outlines
    start = next(i for i, line in enumerate(lines) if re.fullmatch(r"=+ pallas =+", line))
    end = next(i for i in range(start + 1, len(lines)) if re.match(r"=+ \S", lines[i]))
    return [re.sub(r"\s+\d+\.\d$", "", line) for line in lines[start + 1 : end]]


def rows(lines: list[str]) -> dict[str, list[str]]:
    """The cells of each row, by kernel."""
    split = [re.split(r"\s{2,}", line.strip()) for line in lines]
    return {cells[0]: cells[1:] for cells in split}


def test_cells_count_outcomes_of_kernels_by_backend_and_reasons_are_listed(mixed):
    result, color = mixed.run(*RUN), mixed.run(*RUN, "--color=yes")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    lines = table(result)
    found = rows(lines)
    assert found["kernel"] == [
        "tpu-sim:v5e", "interpret", "gpu-interpret", "examples", "seconds",
    ]  # fmt: skip
    good = found["good"]
    assert good[0].startswith("2 ok")
    assert good[1].startswith("2 ok")
    assert good[2] == "1 skipped"
    assert found["wrong"][:3] == ["1 ok 1 FAILED", "1 ok 1 FAILED", "1 skipped"]
    assert found["refused"][:3] == ["1 xfail", "1 xfail", "1 skipped"]  # forward alone is run
    assert found["mended"][0] == "1 ok 1 FAILED"  # it passes, and that must be noticed
    assert int(good[3]) == 6  # forward draws 2, determinism 1, on two backends

    # The reasons of skips and expected failures are listed.
    text = "\n".join(lines)
    assert "expected failure (2) on interpret, tpu-sim:v5e: refused: #12 (JAX 0.12)" in text
    assert "not run (1) on interpret: refused: forward raised; see `refused-forward[inte" in text
    assert (
        "skipped (4) on gpu-interpret: good, wrong, refused, mended: the spec claims only tpu-sim"
        in text
    )

    # Failures are red and passes green.
    assert "\x1b[" not in result.stdout.str()
    text = color.stdout.str()
    (line,) = [line for line in text.splitlines() if "1 FAILED" in line and "wrong" in line]
    assert "\x1b[31m" in line  # red
    (line,) = [line for line in text.splitlines() if re.search(r"^good ", line)]
    assert "\x1b[32m" in line  # green


def test_a_run_without_kernels_has_no_table(project):
    project.write(test_a="def test_a(): pass")
    assert not re.search("=+ pallas =+", project.run().stdout.str())


def test_an_expected_failure_shows_no_multiple(project):
    """Its error says nothing of the checks that passed."""
    project.specs(
        'name="refused", kernel=add_off, checks=("forward",), '
        'xfail={"interpret": ExpectedFailure(reason="off", jax="0.12")}'
    )
    result = project.run("--pallas-suite=specs", "--pallas-backend=interpret")
    result.stdout.re_match_lines([r"refused +1 xfail +\d+ +[\d.]+$"])


def test_quiet_shows_failed_kernels_and_counts_the_rest(mixed):
    """Only what failed, and how many kernels did not."""
    text = "\n".join(table(mixed.run(*RUN, "-q")))
    assert list(rows(text.splitlines())) == [
        "kernel",
        "wrong",
        "mended",
        "2 kernels without failures",
    ]
    assert "1.2x:" not in text
    assert "skipped (" not in text


def test_verbose_lists_all_kernels_and_requirements(project, monkeypatch):
    """All kernels and requirements are listed, and nothing that was never drawn is left out."""
    monkeypatch.setattr(results, "_MOST_LINES", 5)
    project.specs(*(f'name="k{number}", kernel=add' for number in range(8)))
    run = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward,donation",
           "--pallas-max-examples=1")  # fmt: skip
    short, whole = (project.run(*run, *extra).stdout.str() for extra in ((), ("-v",)))
    names = ", ".join(f"k{number}" for number in range(8))
    assert "not applicable: 8 checks of 8 kernels (-v lists them)" in short
    assert "more kernels (-v lists them)" in short
    assert "no example aliases an input" not in short
    assert "not applicable: 8 checks of 8 kernels\n" in whole
    assert f"  no example aliases an input (8): donation on tpu-sim: {names}" in whole
    assert not re.search("more kernels", whole)
    assert "never drawn: choices of 3 more kernels" in short
    assert "never drawn: something" not in whole
    assert len(re.findall("never drawn: k", whole)) == 8


def test_a_narrow_terminal_has_a_list_instead_of_a_table(mixed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    found = table(mixed.run(*RUN))
    at = next(i for i, line in enumerate(found) if re.match(r"wrong  \d+ in", line))
    assert found[at + 1].split() == ["tpu-sim:v5e", "1", "ok", "1", "FAILED"]
    assert found[at + 2].split()[0] == "interpret"
