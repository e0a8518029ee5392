"""What a job writes to stdout and stderr."""

from __future__ import annotations

from pytest_pallas.workers import process
from pytest_pallas.workers.process import KEPT_BYTES, Capture, WorkerSetup


def test_everything_that_is_written_is_kept_in_order(do):
    assert do("print_everywhere", b"this").output == (
        "printed this\ncomplained\nwritten to 1\nwritten to 2\nput by C\n"
    )


def test_each_job_has_its_own_output(do):
    assert "first" in do("print_everywhere", b"first").output
    assert "first" not in do("print_everywhere", b"second").output


def test_what_is_written_between_jobs_belongs_to_none(do, gone):
    assert gone(int(do("print_late", b"0.05").value))
    assert do("print_late", b"10").output == ""


def test_the_last_64_kilobytes_are_kept(do):
    result = do("print_much", b"1")
    assert result.output == "x" * (KEPT_BYTES - 7) + "the end"


def test_a_job_may_close_its_output(do):
    for _ in range(2):  # The second time in the worker that the first has left.
        assert do("close_output", b"x").value == b"x"
    assert do("close_descriptors", b"x").value == b"x"


def test_output_returns_after_a_job_that_closed_it(pool, tmp_path, monkeypatch):
    source = """\
import sys, os
def run(payload):
    print(payload.decode())
    print("err", payload.decode(), file=sys.stderr)
    sys.stdout.close(); sys.stderr.close()
    return str(os.getpid()).encode()
"""
    tmp_path.joinpath("closing_module.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    setup = WorkerSetup(name="closing", entry="closing_module:run")
    one, two = (pool.submit(setup, p, timeout=10).result(timeout=20) for p in (b"one", b"two"))
    assert one.value == two.value
    assert (one.output, two.output) == ("one\nerr one\n", "two\nerr two\n")


def test_a_large_file_is_emptied_and_its_end_kept(monkeypatch):
    monkeypatch.setattr(process, "FILE_BYTES", 1000)
    output = Capture()
    with open(output.fileno(), "wb", buffering=0, closefd=False) as writer:
        writer.write(b"a" * 1001 + b"z")
        output.trim()
        writer.write(b"!")
        assert output.text() == "a" * 1001 + "z!"
        output.trim()
        writer.write(b"b" * KEPT_BYTES)
        assert output.text() == "b" * KEPT_BYTES
        output.clear()
        assert output.text() == ""
    output.close()


def test_a_job_that_writes_without_end_does_not_fill_the_disk(do, monkeypatch):
    monkeypatch.setattr(process, "FILE_BYTES", 2**20)
    result = do("print_slowly", b"25")
    assert int(result.value) < 20 * 2**20
    assert result.output == "x" * KEPT_BYTES


def test_bytes_that_are_no_text_are_replaced():
    output = Capture()
    with open(output.fileno(), "wb", buffering=0, closefd=False) as writer:
        writer.write(b"\xff!")
    assert output.text() == "\ufffd!"
    output.close()
