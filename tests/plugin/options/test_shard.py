"""``--pallas-shard`` and ``pytest-pallas merge``: together the whole."""

import json

import pytest

from pytest_pallas.__main__ import main

SPECS = [f'name="k{number}", kernel={"add_off" if number == 1 else "add"}' for number in range(3)]
RUN = (
    "--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward,determinism",
    "--pallas-max-examples=1",
)  # fmt: skip

#: The files of ``shards``, which the first test makes, with ``FOLDER`` in place of the project's.
WRITTEN: list[str] = []


@pytest.fixture
def shards(project, monkeypatch):
    """The files of three runs, a shard each, and of the whole."""
    project.specs(*SPECS)
    monkeypatch.chdir(project.path)
    files = [project.path / f"{name}.json" for name in (1, 2, 3, "whole")]
    folder = str(project.path)
    if not WRITTEN:
        for number in (1, 2, 3):
            project.run(*RUN, f"--pallas-shard={number}/3", f"--pallas-results={number}.json")
        project.run(*RUN, "--pallas-results=whole.json")
        WRITTEN.extend(path.read_text().replace(folder, "FOLDER") for path in files)
    for path, text in zip(files, WRITTEN, strict=True):
        path.write_text(text.replace("FOLDER", folder))
    return project.path


def records(path):
    """Each test with its outcome."""
    plain = json.loads(path.read_text())
    return {(r["test"], r["outcome"]) for r in plain["records"]}


def test_shards_are_together_the_whole(shards, capsys):
    parts = [records(shards / f"{number}.json") for number in (1, 2, 3)]
    whole = records(shards / "whole.json")
    assert all(parts)
    assert sum(map(len, parts)) == len(whole)
    assert main(["merge", "1.json", "2.json", "3.json", "-o", "all.json", "--html=all.html"]) == 1
    assert records(shards / "all.json") == whole
    joined, once = (json.loads((shards / f).read_text()) for f in ("all.json", "whole.json"))
    assert joined["distinct"] == once["distinct"]
    assert joined["not_applicable"] == once["not_applicable"]
    assert "1 check failed, in 1 of 3 kernels" in (shards / "all.html").read_text()
    text = capsys.readouterr().out
    assert "FAILED specs.py::k1-forward[tpu-sim] - output, float32[8, " in text
    assert "problem" not in text
    assert "3 files: 1 failed, 5 passed" in text


def test_what_is_missing_or_different_is_a_problem(shards, capsys):
    plain = json.loads((shards / "2.json").read_text())
    plain["environment"]["jax"] = "0.11.2"
    plain["suite"] = {"specs": "other"}
    (shards / "2.json").write_text(json.dumps(plain))
    assert main(["merge", "1.json", "2.json"]) == 1
    text = capsys.readouterr().out
    assert "problem: shard 3/3 is missing" in text
    assert "problem: jax differs: 1.json has " in text
    assert "problem: suite specs differs: " in text


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["1.json", "1.json"], "shard 1/3 is in both 1.json and 1.json"),
        (["1.json", "whole.json"], "is in both 1.json and whole.json"),
        (["1.json", "none.json"], "none.json: No such file"),
        (["1.json", "specs.py"], "specs.py is not a file of --pallas-results"),
        (["1.json", "newer.json"], "newer.json has the schema 99"),
    ],
)
def test_files_that_cannot_be_joined(shards, capsys, files, message):
    (shards / "newer.json").write_text(json.dumps({"schema": 99}))
    assert main(["merge", *files]) == 2
    assert message in capsys.readouterr().err


def test_a_shard_says_what_it_runs_and_takes_times_of_an_earlier_run(shards, project):
    result = project.run(*RUN, "--pallas-shard=2/3", "--pallas-shard-by=whole.json")
    result.stdout.fnmatch_lines(["pallas: shard 2/3: * of 6 tests, * of the expected time"])


def test_a_shard_without_tests_passes(project):
    project.write(test_own="def test_own():\n    pass")
    assert project.run("--pallas-shard=1/2").ret == 0
    assert project.run("--pallas-shard=2/2").ret == 0
    assert (
        project.run("--pallas-shard=2/2", "-k", "nothing").ret == pytest.ExitCode.NO_TESTS_COLLECTED
    )


@pytest.mark.parametrize("value", ["4/3", "a"])
def test_wrong_values(project, value):
    project.write(test_own="def test_own():\n    pass")
    result = project.run(f"--pallas-shard={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "must be I/N with I from 1 to N" in result.stderr.str()
