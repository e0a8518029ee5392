"""What C++ code writes to stdout and stderr is heard, and survives the end of the process."""

import os
from contextlib import contextmanager

import pytest

from pytest_pallas.compile.service import CapturedOutput, divert, overhear_log

INFORMATION = (
    b"I1121 06:22:59.473493    2785 subprocess_compilation.cc:356] ptxas info    : 0 bytes gmem\n"
    b"ptxas info    : Function properties for k\n"
    b"    0 bytes stack frame\n"
    b"\n"
)
WARNING = b"W1121 06:22:59.473493    2785 file.cc:1] careful\n    of this\n"
PTXAS = b"ptxas /tmp/file, line 512; error   : Instruction 'wgmma.fence' not supported\n"
ERROR = b"LLVM ERROR: Cannot select\n"


@contextmanager
def stderr_is(file):
    saved = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def test_what_is_diverted_is_heard_and_not_seen(capfd):
    with divert(1) as heard:
        os.write(1, b"host code\n")
    os.write(1, b"later\n")
    assert heard.text == "host code\n"
    assert capfd.readouterr().out == "later\n"


@pytest.mark.parametrize("mode", ["ab", "wb"])
def test_what_is_logged_is_heard_and_removed(tmp_path, mode):
    with (tmp_path / "log").open(mode, buffering=0) as file, stderr_is(file):
        os.write(2, b"before\n")
        with overhear_log() as heard:
            os.write(2, INFORMATION + ERROR)
        os.write(2, b"after\n")
    assert heard.text.encode() == INFORMATION + ERROR
    assert (tmp_path / "log").read_bytes() == b"before\nafter\n"


def test_remarks_are_what_is_more_than_information():
    heard = CapturedOutput()
    heard.text = (INFORMATION + WARNING + INFORMATION + ERROR).decode()
    assert heard.remarks().encode() == WARNING + ERROR
    heard.text = (ERROR + INFORMATION + PTXAS).decode()
    assert heard.remarks().encode() == ERROR + PTXAS


def test_a_file_that_is_appended_to_has_the_text_at_once(tmp_path):
    """The process may end before the context does."""
    with (tmp_path / "log").open("ab", buffering=0) as file, stderr_is(file), overhear_log():
        os.write(2, ERROR)
        assert (tmp_path / "log").read_bytes() == ERROR


def test_a_file_that_is_emptied_by_who_reads_it(tmp_path):
    with (tmp_path / "log").open("ab", buffering=0) as file, stderr_is(file):
        os.write(2, b"x" * 1000)
        with overhear_log() as heard:
            os.ftruncate(2, 0)
            os.write(2, ERROR)
    assert (tmp_path / "log").read_bytes() == b""
    assert heard.text.encode() == ERROR


def test_an_error_passes_and_leaves_the_descriptors_as_they_were(capfd):
    def refuse():
        with divert(1), overhear_log():
            os.write(1, b"noise\n")
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refuse()
    os.write(1, b"out\n")
    os.write(2, b"err\n")
    assert capfd.readouterr() == ("out\n", "err\n")
