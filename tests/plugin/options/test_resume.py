"""``--pallas-resume``, and the journal of ``--pallas-results``: a killed run loses nothing."""

from __future__ import annotations

import json
import re

import pytest

from pytest_pallas.__main__ import main

RUN = (
    "--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=1",
    "--pallas-checks=forward,determinism,jit", "--pallas-results=results.json",
)  # fmt: skip

#: One test of each outcome, and one that kills the reporting process once.
TESTS = """
    import os, signal, sys, time
    import numpy as np
    import pytest
    from kernels import *

    X = np.ones((8, 128), np.float32)

    @pytest.fixture(scope="module")
    def of_module():
        yield

    @pytest.fixture
    def fails_at_its_end():
        yield
        raise RuntimeError("torn down")

    def test_passes(of_module, request):
        request.node.user_properties.append(("own", 7))

    def test_fails(of_module):
        print("some output")
        assert 1 == 2, "no"

    @pytest.mark.skip(reason="later")
    def test_skipped(): pass

    @pytest.mark.xfail(reason="known")
    def test_xfails(): assert 0

    @pytest.mark.xfail(reason="fixed")
    def test_xpasses(): pass

    def test_error(fails_at_its_end): pass

    def test_kernel(pallas_check):
        pallas_check(add, X, X, reference=reference)

    def test_kills():
        if os.path.exists("kill"):
            os.unlink("kill")
            with open("pid") as file:
                os.kill(int(file.read()), signal.SIGKILL)
            time.sleep(10)

    def test_wrong_kernel(pallas_check):
        pallas_check(add_off, X, X, reference=reference)
"""

#: The first process, which starts all others, is the one that reports.
CONFTEST = """
    import os

    def pytest_configure(config):
        if not os.path.exists("pid"):
            with open("pid", "w") as file:
                file.write(str(os.getpid()))
"""


@pytest.fixture
def suite(project, monkeypatch):
    """Specs, of which one is wrong and one raises, and tests."""
    project.specs('name="good", kernel=add', 'name="bad", kernel=add_off',
                  'name="raises", kernel=add_raises')  # fmt: skip
    project.write(test_own=TESTS, conftest=CONFTEST)
    monkeypatch.chdir(project.path)
    return project


#: Files of runs that several tests need, with ``FOLDER`` in place of the project's.
KNOWN: dict[str, str] = {}


def known(project, path, make):
    """Write a file that ``make`` writes, which only the first of several tests calls."""
    folder = str(project.path)
    if path.name not in KNOWN:
        make()
        KNOWN[path.name] = path.read_text().replace(folder, "FOLDER")
    path.write_text(KNOWN[path.name].replace("FOLDER", folder))
    return path


def killed_before(project):
    """The journal of a run whose process was killed in the middle."""
    journal = project.path / "results.json.partial"
    return known(project, journal, lambda: killed(project))


def ended_early(project):
    """The results of a run of the specs that ended with the first failure."""
    words = ("specs.py", *RUN, "-x")
    return known(project, project.path / "results.json", lambda: project.run(*words))


def killed(project, *words):
    """A run whose process is killed in the middle; its journal."""
    (project.path / "kill").touch()
    (project.path / "pid").unlink(missing_ok=True)
    result = project.spawn("test_own.py", *RUN, *words)
    assert result.ret == -9 or "passed" not in result.stdout.str()
    assert not (project.path / "results.json").exists()
    return project.path / "results.json.partial"


def read(path):
    """Results, without times, and without paths that differ by run."""
    plain = json.loads(path.read_text().replace(str(path.parent), "FOLDER"))
    for each in (*plain["records"], *plain["tests"]):
        for name in ("seconds", "kernel_seconds", "failures"):
            each.pop(name, None)
    return plain


def counts(path):
    """What JUnit's file counts."""
    [suite] = re.findall(r"<testsuite [^>]*", path.read_text())
    found = dict(re.findall(r'(errors|failures|skipped|tests)="(\d+)"', suite))
    assert len(found) == 4
    return found


def lines(result):
    return "\n".join(result.outlines)


#: The results, the outcomes and the counts of JUnit's file of a run in one go.
ONCE: list[tuple[object, ...]] = []


def check_that_all_are_there(project, result):
    """The results, the counts and JUnit's file are those of a run in one go."""
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    found = read(project.path / "results.json")
    found.pop("fleet", None)
    assert not (project.path / "results.json.partial").exists()
    if not ONCE:
        words = ("--pallas-results=once.json", "--junit-xml=once.xml")
        once = project.run("test_own.py", *RUN, *words)
        results, junit = read(project.path / "once.json"), counts(project.path / "once.xml")
        ONCE.append((results, once.parseoutcomes(), junit))
    assert (found, result.parseoutcomes(), counts(project.path / "junit.xml")) == ONCE[0]


def test_a_run_that_is_killed_is_taken_up(suite, capsys):
    journal = killed_before(suite)
    assert main(["merge", "results.json", "-o", "merged.json"]) == 1
    text = capsys.readouterr().out
    left = re.search(
        r"problem: results\.json\.partial: the run was cut off: (\d+) of 18 tests did not end, "
        r"test_own.py::test_kills was running; --pallas-resume takes it up",
        text,
    )
    assert left is not None
    assert "FAILED test_own.py::test_fails - AssertionError: no" in text
    done = journal.read_text().count('{"ended"')
    assert done == 18 - int(left[1]) > 5
    merged = json.loads((suite.path / "merged.json").read_text())
    assert sum(test["outcome"] == "not run" for test in merged["tests"]) == int(left[1])
    result = suite.run("test_own.py", *RUN, "--pallas-resume=results.json", "--junit-xml=junit.xml")
    text = lines(result)
    assert f"resumed: {done} of 18 tests were done" in text
    assert "some output" in text
    assert "FAILED test_own.py::test_fails - AssertionError: no" in text
    check_that_all_are_there(suite, result)
    assert '<property name="own" value="7" />' in (suite.path / "junit.xml").read_text()


def test_a_controller_of_xdist_that_is_killed(suite):
    killed(suite, "-n2")
    result = suite.run(
        "test_own.py", *RUN, "-n2", "--pallas-resume=results.json", "--junit-xml=junit.xml"
    )
    check_that_all_are_there(suite, result)


@pytest.mark.slow
@pytest.mark.usefixtures("dask")
def test_a_controller_of_a_fleet_that_is_killed(suite):
    """Its worker process ends with it."""
    killed(suite, "--pallas-fleet=local:1")
    words = ("--pallas-resume=results.json", "--junit-xml=junit.xml")
    result = suite.run("test_own.py", *RUN, "--pallas-fleet=local:1", *words)
    check_that_all_are_there(suite, result)


def test_a_run_that_is_done_is_not_run_again(suite):
    once = suite.run("test_own.py", *RUN)
    before = read(suite.path / "results.json")
    for words in ((), ("-n1",)):
        result = suite.run("test_own.py", *RUN, "--pallas-resume=results.json", *words)
        assert "resumed: 18 of 18 tests were done" in lines(result)
        assert result.ret == once.ret
        assert result.parseoutcomes() == once.parseoutcomes()
        assert read(suite.path / "results.json") == before


def test_all_that_passed_is_a_success(project):
    project.write(test_own="def test_own(): pass")
    project.run("--pallas-results=results.json").assert_outcomes(passed=1)
    for words in ((), ("-n1",)):
        result = project.run("--pallas-resume=results.json", *words)
        assert result.ret == 0
        result.assert_outcomes(passed=1)


def test_a_run_that_ended_early_is_taken_up(suite, capsys):
    suite.run("test_own.py", *RUN, "-x")
    assert main(["merge", "results.json"]) == 1
    assert re.search(r"results.json: the run ended early: \d+ of 18 tests", capsys.readouterr().out)
    result = suite.run("test_own.py", *RUN, "--pallas-resume=results.json", "--junit-xml=junit.xml")
    check_that_all_are_there(suite, result)


def test_a_torn_line_is_a_test_that_did_not_end(suite):
    journal = killed_before(suite)
    text = journal.read_text().splitlines()
    last = max(number for number, line in enumerate(text) if line.startswith('{"ended"'))
    text[last] = text[last][:-9]
    journal.write_text("\n".join(text[: last + 1]))
    done = sum(line.startswith('{"ended"') for line in text) - 1
    result = suite.run("test_own.py", *RUN, "--pallas-resume=results.json",
                       "--junit-xml=junit.xml")  # fmt: skip
    assert f"resumed: {done} of 18 tests were done" in lines(result)
    check_that_all_are_there(suite, result)


def test_a_kernel_that_raised_stops_its_other_checks(suite):
    """Also where the check that raised is of the earlier part of the run."""
    suite.run(*RUN, "-n0", "specs.py", "--deselect", "nothing")
    whole = read(suite.path / "results.json")
    assert any(record["stopped_by"] for record in whole["records"])
    path = suite.path / "results.json"
    plain = json.loads(path.read_text())
    stopped = {record["test"] for record in plain["records"] if record["stopped_by"]}
    plain["records"] = [r for r in plain["records"] if r["test"] not in stopped]
    for test in plain["tests"]:
        if test["test"] in stopped:
            test["outcome"] = "not run"
    path.write_text(json.dumps(plain))
    for words in ((), ("-n1",)):
        suite.run(*RUN, "specs.py", "--pallas-resume=results.json", *words)
        assert read(path) == whole
        path.write_text(json.dumps(plain))


def test_a_shard_is_taken_up(suite):
    words = ("test_own.py", *RUN, "--pallas-shard=1/2")
    suite.run(*words)
    whole = read(suite.path / "results.json")
    suite.run(*words, "-x")
    result = suite.run(*words, "--pallas-resume=results.json")
    assert "tests were done" in lines(result)
    assert read(suite.path / "results.json") == whole
    result = suite.run("test_own.py", *RUN, "--pallas-shard=2/2", "--pallas-resume=results.json")
    assert "option shard is 2,2, and was 1,2" in result.stderr.str()


def without_seconds(results):
    for record in results["records"]:
        for verdict in record["mutants"]:
            verdict.pop("seconds")
    for test in results["tests"]:
        test.pop("part", None)
    return results


def test_mutants_are_not_run_again(project):
    """Whichever test is left, a mutant counts for the first one that kills it."""
    project.specs('name="good", kernel=add', 'name="more", kernel=add', 'name="last", kernel=add')
    words = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-mutate=1",
             "--pallas-max-examples=1", "--pallas-results=results.json")  # fmt: skip
    project.run(*words, "-n0")
    path = project.path / "results.json"
    text, whole = path.read_text(), without_seconds(read(path))
    by = [verdict["by"] for record in whole["records"] for verdict in record["mutants"]]
    assert by == ["forward", "good", "good"]
    for workers, left in (("-n0", 0), ("-n0", 1), ("-n0", 2), ("-n1", 1)):
        plain = json.loads(text)
        plain["records"].pop(left)
        plain["tests"][left] = {"test": plain["tests"][left]["test"], "outcome": "not run"}
        path.write_text(json.dumps(plain))
        result = project.run(*words, workers, "--pallas-resume=results.json")
        assert "resumed: 2 of 3 tests were done" in lines(result)
        assert without_seconds(read(path)) == whole, (workers, left)


def test_a_file_that_does_not_exist_yet(suite):
    """Of the same run it is no error: a job that is started again has one command line."""
    result = suite.run("specs.py", *RUN, "--pallas-resume=results.json")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "resumed" not in lines(result)
    result = suite.run("specs.py", *RUN, "--pallas-resume=other.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "other.json: No such file" in result.stderr.str()


@pytest.mark.parametrize(
    ("change", "words", "message"),
    [
        (lambda _: None, ("--pallas-seed=3",), "results.json is of another run: option seed is 3, "
         "and was 0"),
        (lambda _: None, ("--pallas-max-examples=2",), "option max_examples is 2, and was 1"),
        (lambda _: None, ("--pallas-max-bytes=1MiB",), "option max_bytes is 1048576, and was 67"),
        (lambda _: None, ("--pallas-backend=gpu-sim",), "option backend is gpu-sim, and was tpu-"),
        (lambda _: None, ("-k", "good"), "tests of that run are not collected here: specs.py::bad"),
        (lambda _: None, ("--pallas-checks=all",), "option checks is all, and was forward,"),
        (lambda plain: plain["environment"].update(jax="0.11.2"), (), "jax is "),
        (lambda plain: plain["files"].update({"specs.py": "0"}), (), "specs.py has changed"),
        (lambda plain: plain["files"].pop("specs.py"), (), "specs.py is new"),
        (lambda plain: plain["files"].update({"gone.py": "0"}), (), "gone.py is gone"),
        (lambda plain: plain["tests"].pop(), (), "1 tests that are collected here are not of that"),
        (lambda plain: plain.pop("tests"), (), "does not say which tests its run had"),
        (lambda plain: plain.update(schema=99), (), "has the schema 99"),
        (lambda plain: plain.pop("records"), (), "is not a file of --pallas-results"),
    ],
)  # fmt: skip
def test_a_run_that_cannot_be_taken_up(suite, change, words, message):
    path = ended_early(suite)
    plain = json.loads(path.read_text())
    change(plain)
    path.write_text(text := json.dumps(plain))
    result = suite.run("specs.py", *RUN, "--pallas-resume=results.json", *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str()
    assert "Traceback" not in lines(result) + result.stderr.str()
    assert path.read_text() == text, "what was computed is still there"


def test_other_tests_under_xdist(suite):
    text = ended_early(suite).read_text()
    result = suite.run(*RUN, "--pallas-resume=results.json", "-n1", "-k", "good", "specs.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "tests of that run are not collected here" in result.stderr.str()
    assert (suite.path / "results.json").read_text() == text


def test_a_collection_that_fails_loses_nothing(suite):
    words = ("test_own.py", "--pallas-results=results.json")
    suite.run(*words, "-x")
    before = read(suite.path / "results.json")
    suite.write(test_other="import nothing")
    result = suite.run(*words, "test_other.py", "--pallas-resume=results.json")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert read(suite.path / "results.json") == before
    (suite.path / "test_other.py").unlink()
    suite.run(*words, "--pallas-resume=results.json")
    tests = json.loads((suite.path / "results.json").read_text())["tests"]
    assert not any(test["outcome"] == "not run" for test in tests)


def test_the_folder_is_removed_in_the_middle(suite):
    (suite.path / "out").mkdir()
    suite.write(
        conftest="""
        import shutil

        def pytest_pallas_record(config, record):
            shutil.rmtree("out", ignore_errors=True)
        """
    )
    result = suite.run("specs.py", *RUN, "--pallas-results=out/results.json")
    text = lines(result)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "pallas: cannot write results.json.partial: " in text
    assert "Results are lost if this run is cut off" in text
    assert "1 ok 1 FAILED" in text or "FAILED" in text
    assert "INTERNALERROR" not in text


def test_time_goes_to_what_is_left(suite):
    """A run of a minute, half of whose tests are done, has half a minute."""
    from pytest_pallas.pytest_session import current
    from pytest_pallas.run.item import CLOCK, time_budget_of

    seen = {}

    class Spy:
        def pytest_runtestloop(self, session):
            state = current(session.config)
            clock = time_budget_of(session.config, session.items, 60.0)
            seen[len(state.done_items)] = clock.seconds, sum(clock.weights.values())
            del session.config.stash[CLOCK]  # the run itself has two seconds

    def run(*words):
        return suite.pytester.inline_run(*words, plugins=[Spy()])

    run("specs.py", *RUN, "--pallas-fuzz-time=2", "-x", "-p", "no:jaxtyping")
    [_, done] = sorted([*seen, 0])[-2:]
    assert done == 0
    run("specs.py", *RUN, "--pallas-fuzz-time=2", "-p", "no:jaxtyping",
        "--pallas-resume=results.json")  # fmt: skip
    done = max(seen)
    assert 0 < done < 9
    assert seen[0] == (60.0, pytest.approx(3))
    seconds, weights = seen[done]
    assert weights == pytest.approx((9 - done) / 3)
    assert seconds == pytest.approx(60 * (9 - done) / 9)


@pytest.mark.parametrize(
    "words",
    [
        ("--pallas-shard=1/2", "--pallas-shard-by=newer.json"),
        ("--pallas-mutate", "--pallas-mutate-after=newer.json"),
        ("--pallas-resume=newer.json",),
    ],
)
def test_a_file_of_a_newer_version(suite, words):
    newer = {"schema": 99, "environment": {"pytest_pallas": "3.1"}}
    (suite.path / "newer.json").write_text(json.dumps(newer))
    result = suite.run("specs.py", *RUN, *words)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert words[-1].partition("=")[0] in text
    assert "has the schema 99, and this pytest-pallas reads up to 2: pytest-pallas 3.1" in text


def test_a_journal_is_a_file_of_an_earlier_run(suite):
    """For the seconds of tests, for example."""
    killed_before(suite)
    result = suite.run("specs.py", *RUN, "--pallas-shard=1/2", "--pallas-shard-by=results.json")
    assert "pallas: shard 1/2" in lines(result)


def test_nothing_of_it_is_loaded_without_the_options(project):
    project.write(
        test_own="""
        import sys

        def test_own(pallas_check):
            assert "pytest_pallas.distribute.resume" not in sys.modules
        """
    )
    assert project.spawn("--pallas-backend=tpu-sim", ours=False).ret == 0
