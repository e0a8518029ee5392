"""Programs are compiled once, in workers that end, and only what compilers said is remembered."""

import os
import threading
from pathlib import Path

import pytest
from pallas_test_support.fake_compilers import counts

from pallas_sim.errors import PallasError
from pytest_pallas.compile import service as services
from pytest_pallas.compile.service import CompileRequest, Service

SECONDS = 60


class Fake:
    """A service whose compiler notes what it has to compile."""

    def __init__(self, cache=None, **options):
        self.scratch: Path | None = None
        self.service = Service(
            **{"workers": 1, "memory_bytes": 2**32, "everything": False, "cache": cache} | options
        )

    def environment(self, scratch, **rest):
        self.scratch = scratch
        return counts.environment(scratch, **rest)

    def start(self, module=b"good", target="v6e", timeout=SECONDS, **fields):
        program = CompileRequest(target=target, module=module, **fields)
        return self.service.submit(program, timeout=timeout)

    def compile(self, *args, **fields):
        return self.start(*args, **fields).result(timeout=SECONDS)

    @property
    def pids(self):
        return [int(path.name) for path in self.scratch.iterdir()]

    @property
    def notes(self):
        texts = [path.read_text().splitlines() for path in self.scratch.iterdir()]
        return sorted(line for lines in texts for line in lines)


@pytest.fixture
def make(monkeypatch, tmp_path):
    """Make services that share a cache; all are closed in the end."""
    made = []

    def make(cache=tmp_path / "cache", **options):
        fake = Fake(cache, **options)
        made.append(fake)
        return fake

    def compiler_of(platform):
        assert platform == "tpu"
        module = type(counts)("pallas_test_support.fake_compilers.counts")
        module.__dict__.update(counts.__dict__, environment=made[-1].environment)
        return module

    monkeypatch.setattr(services, "compiler_of", compiler_of)
    yield make
    for fake in made:
        fake.service.close()


def test_equal_programs_are_compiled_once(make):
    fake = make()
    first, second = fake.start(), fake.start()
    assert first is second
    assert first.result(timeout=SECONDS).status == "compiled"
    assert fake.compile() is first.result()
    assert fake.notes == ["good v6e 1"]


def test_programs_that_differ_in_anything_are_compiled_each(make):
    fake = make()
    for fields in ({}, {"module": b"other"}, {"target": "v5e"}, {"devices": 4}):
        assert not fake.compile(**fields).cached
    assert fake.notes == ["good v5e 1", "good v6e 1", "good v6e 4", "other v6e 1"]


def test_the_next_session_finds_what_was_compiled(make):
    first = make().compile()
    fake = make()
    again = fake.compile()
    assert (first.cached, again.cached) == (False, True)
    assert (again.status, again.code_bytes, again.compiler) == ("compiled", 1000, "fake 1")
    assert fake.scratch is None  # no worker was set up


def test_the_next_session_finds_what_was_refused(make):
    first = make().compile(b"refuse")
    fake = make()
    again = fake.compile(b"refuse")
    assert (first.status, first.text) == ("refused", "no such instruction")
    assert (again.status, again.text, again.cached) == ("refused", "no such instruction", True)
    assert fake.scratch is None


@pytest.mark.parametrize(
    ("module", "words"), [(b"abort", "SIGABRT"), (b"raise", "this is no program")]
)
def test_a_crash_is_reported_and_tried_again_by_the_next_session(make, module, words):
    fake = make()
    report = fake.compile(module)
    assert (report.status, words in report.text) == ("crashed", True)
    assert fake.compile().status == "compiled"  # the service goes on
    fake = make()
    assert not fake.compile(module).cached
    assert fake.notes == [f"{module.decode()} v6e 1"]


def test_another_version_or_other_flags_are_another_result(make, monkeypatch):
    make().compile()
    monkeypatch.setattr(counts, "version", lambda: "fake 2")
    assert not make().compile().cached
    monkeypatch.setattr(counts, "flags", lambda: "--fast")
    assert not make().compile().cached
    assert make().compile().cached


def test_a_report_without_costs_is_not_one_with_costs(make):
    make(costs=False).compile()
    assert not make().compile().cached
    assert make(costs=False).compile().cached


def test_without_a_cache_nothing_is_remembered(make):
    make(cache=None).compile()
    assert not make(cache=None).compile().cached


def test_an_entry_of_another_make_is_rewritten(make, tmp_path):
    make().compile()
    [path] = (tmp_path / "cache").rglob("*.json")
    good = path.read_text()
    path.write_text(good.replace('"status"', '"outcome"'))
    assert not make().compile().cached
    assert make().compile().cached


def test_a_dump_is_compiled_whatever_is_known(make, tmp_path):
    make().compile()
    fake = make(everything=True)
    assert fake.compile().cached
    report = fake.compile(dump=str(tmp_path))
    assert (report.status, report.cached) == ("compiled", False)
    assert (tmp_path / "code").read_text() == "True"
    (tmp_path / "code").unlink()
    fake.compile(dump=str(tmp_path))
    assert (tmp_path / "code").exists()


def test_closing_ends_the_workers_and_removes_their_folder(make):
    fake = make(workers=2)
    for future in [fake.start(b"a"), fake.start(b"b")]:
        future.result(timeout=SECONDS)
    pids = fake.pids
    assert pids
    fake.service.close()
    assert not fake.scratch.exists()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_is_not_compiled_when_the_session_ends_is_not_waited_for(make):
    fake = make()
    futures = [fake.start(f"{number}".encode()) for number in range(20)]
    threading.Timer(0.01, fake.service.close).start()
    with pytest.raises(PallasError, match="the session ended"):
        futures[-1].result(timeout=SECONDS)


def test_an_answer_that_cannot_be_read_is_an_error_and_no_endless_wait(make, monkeypatch):
    def unreadable(data):
        raise ValueError("no JSON")

    monkeypatch.setattr(services, "parse", unreadable)
    with pytest.raises(PallasError, match="answer cannot be read: ValueError: no JSON"):
        make().compile()
