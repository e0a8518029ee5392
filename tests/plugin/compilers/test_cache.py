"""A second run compiles nothing, whatever is wrong with the cache is mended."""

import pytest

TEST = """
    from chips import *

    def test_it(pallas_check):
        pallas_check(double, X, reference=twice)
"""


@pytest.fixture
def project_(compiling):
    compiling.write(test_it=TEST)
    return compiling


def report(project, *args):
    [record] = project.records("--pallas-backend=tpu-compile:v5e", *args)
    assert record["outcome"] == "passed"
    [found] = record["compiled"]
    return found


def files(project):
    return list((project.path / ".pytest_cache").rglob("pallas-compile/*/*.json"))


def test_the_second_run_compiles_nothing_and_tells_the_same(project_):
    first, second = report(project_), report(project_)
    assert "cached" not in first
    assert second.pop("cached") is True
    assert first == second


def test_another_target_is_another_result(project_):
    report(project_)
    [record] = project_.records("--pallas-backend=tpu-compile:v6e")
    assert "cached" not in record["compiled"][0]


def test_a_changed_kernel_is_compiled_again(project_):
    report(project_)
    text = (project_.path / "chips.py").read_text().replace("* 2", "* 3")
    (project_.path / "chips.py").write_text(text)
    assert "cached" not in report(project_)


def test_a_damaged_entry_is_ignored_and_rewritten(project_):
    report(project_)
    [path] = files(project_)
    path.write_text("{")
    assert "cached" not in report(project_)
    assert report(project_)["cached"] is True


def test_cache_clear_clears_it(project_):
    report(project_)
    assert files(project_)
    assert "cached" not in report(project_, "--cache-clear")


def test_another_flag_is_another_result(project_, monkeypatch):
    report(project_)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=false")
    assert "cached" not in report(project_)


def test_it_works_without_a_cache(project_):
    assert "cached" not in report(project_, "-p", "no:cacheprovider")
    assert not files(project_)
