"""``SourceLine``: made of a file and a number, and read from ``file:line``."""

from __future__ import annotations

import pytest

from pallas_sim.findings import SourceLine, generated_line, read, short, text_at


@pytest.mark.parametrize("file", ["/a/kernel.py", "kernel.py", r"C:\a\kernel.py", "a b.py"])
def test_a_line_is_read_as_it_was_written(file):
    line = SourceLine(file, 24)
    assert read(str(line)) == line


@pytest.mark.parametrize("text", ["", "the end of the kernel", "kernel.py", ":3", "kernel.py:"])
def test_other_texts_name_no_line(text):
    assert read(text) is None
    assert (short(text), text_at(text)) == (text, "")


def test_folders_are_left_out_in_short():
    assert short("/a/b/kernel.py:7") == "kernel.py:7"


def test_the_text_of_a_line_has_no_indentation(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("def f():\n    return 1\n")
    assert text_at(f"{file}:2") == "return 1"
    assert text_at(f"{file}:9") == ""


@pytest.mark.parametrize("own", [SourceLine("<string>", 3), SourceLine("<made>", 3)])
def test_code_without_a_file_is_read_as_its_caller(own):
    caller = SourceLine("/a b/kernel.py", 7)
    text = generated_line(caller, own, "body")
    assert text == "/a b/kernel.py:7 (in body, line 3)"
    assert (read(text), short(text)) == (caller, "kernel.py:7")
    assert generated_line(None, own, "body") == "line 3 of body, which has no file"
