"""``--pallas-replay``: that it replays a failure is shown in report/test_replay.py and goldens/."""

from __future__ import annotations

import pytest

from plugin.conftest import ADD

SUITE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward")


@pytest.mark.parametrize("blob", ["AAAA", "AEEA"])
def test_a_blob_of_another_strategy(project, blob):
    project.specs('name="add", kernel=add')
    result = project.run(*SUITE, f"--pallas-replay={blob}")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "site-packages" not in text
    assert (
        f"--pallas-replay={blob}: cannot replay specs.py::add/forward: its strategy or Hypothesis"
        in text
    )
    assert "Run the test without --pallas-replay" in text


@pytest.mark.parametrize("word", ["nonsense", "====", "A", "no/such.safetensors"])
def test_neither_a_file_nor_a_blob(project, word):
    project.specs('name="add", kernel=add')
    result = project.run(*SUITE, f"--pallas-replay={word}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    [line] = [line for line in result.errlines if line.startswith("ERROR")]
    assert line.startswith("ERROR: --pallas-replay: ")
    assert line.endswith("No such file or directory, and it is no blob that a failure prints")


def test_a_file_that_is_called_like_a_blob(project):
    project.specs('name="add", kernel=add')
    (project.path / "AEEA").touch()
    result = project.run(*SUITE, "--pallas-replay=AEEA")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --pallas-replay: *AEEA: this is no safetensors file*"])


@pytest.mark.parametrize("words", [("-k", "nothing"), ("-k", "nothing", "-n1")], ids=["", "n1"])
def test_that_matches_nothing(project, words):
    project.specs('name="add", kernel=add')
    result = project.run(*SUITE, "--pallas-replay=AEEA", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stdout.str() + result.stderr.str()
    assert "ERROR: --pallas-replay: no selected test runs it. Paste the whole command" in text
    assert "INTERNALERROR" not in text


def test_a_blob_for_a_call_that_draws_nothing(project):
    project.write(test_add=ADD)
    result = project.run("--pallas-backend=interpret", "--pallas-replay=AEEA")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*this call of add has its arguments and draws no example*"])
