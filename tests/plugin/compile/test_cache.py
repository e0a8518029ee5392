"""A second run compiles nothing, whatever is wrong with the cache is mended."""

import pytest
from pallas_test_support.fake_compilers import works

from pytest_pallas.compile import service

TEST = """
    from chips import *

    def test_it(pallas_check):
        pallas_check(double, X, reference=twice)
"""


@pytest.fixture
def project_(compiling):
    compiling.write(test_it=TEST)
    return compiling


@pytest.fixture
def accepting(project_, monkeypatch):
    """A project whose programs a compiler accepts that does not look at them."""
    monkeypatch.setattr(service, "compiler_of", lambda platform: works)
    monkeypatch.setattr("pytest_pallas.compile.libtpu.missing", lambda: None)
    return project_


def report(project, *args):
    [record] = project.records("--pallas-backend=tpu-compile:v5e", *args)
    assert record["outcome"] == "passed"
    [found] = record["compiled"]
    return found


def files(project):
    return list((project.path / ".pytest_cache").rglob("pallas-compile/*/*.json"))


def test_the_second_run_compiles_nothing_and_tells_the_same(project_, monkeypatch):
    first, second = report(project_), report(project_)
    assert "cached" not in first
    assert second.pop("cached") is True
    assert first == second
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_enable_latency_hiding_scheduler=false")
    assert "cached" not in report(project_)  # another flag is another result


@pytest.mark.without_libtpu
def test_another_target_is_another_result(accepting):
    report(accepting)
    [record] = accepting.records("--pallas-backend=tpu-compile:v6e")
    assert "cached" not in record["compiled"][0]


@pytest.mark.without_libtpu
def test_a_changed_kernel_is_compiled_again(accepting):
    report(accepting)
    assert report(accepting)["cached"] is True
    text = (accepting.path / "chips.py").read_text().replace("* 2", "* 3")
    (accepting.path / "chips.py").write_text(text)
    assert "cached" not in report(accepting)


@pytest.mark.without_libtpu
def test_a_damaged_entry_is_ignored_and_rewritten(accepting):
    report(accepting)
    [path] = files(accepting)
    path.write_text("{")
    assert "cached" not in report(accepting)
    assert report(accepting)["cached"] is True


@pytest.mark.without_libtpu
def test_cache_clear_clears_it(accepting):
    report(accepting)
    assert files(accepting)
    assert "cached" not in report(accepting, "--cache-clear")


@pytest.mark.without_libtpu
def test_it_works_without_a_cache(accepting):
    assert "cached" not in report(accepting, "-p", "no:cacheprovider")
    assert not files(accepting)
