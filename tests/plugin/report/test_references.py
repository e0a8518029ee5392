"""References that compute in less than float64: said with ``-v``, and in the records."""

from __future__ import annotations

RUN = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward",
       "--pallas-max-examples=2")  # fmt: skip

NOTE = "the reference computes in float32 ({path}/specs.py:"


def summed(name: str, kernel: str) -> str:
    """A spec whose reference adds in float32."""
    reference = "lambda x, y: x.astype('float32') + y.astype('float32')"
    return f'name="{name}", kernel={kernel}, exact=False, reference={reference}'


def test_a_note_for_those_who_ask(project):
    project.specs(summed("right", "add"), 'name="double", kernel=add, exact=False')
    note = NOTE.format(path=project.path)
    text = project.run(*RUN, "-v").stdout.str()
    assert f"note: right: {note}" in text
    assert "double: the reference" not in text
    assert note not in project.run(*RUN).stdout.str()


def test_a_note_of_each_record(project):
    project.specs(summed("right", "add"), summed("wrong", "add_off"))
    right, wrong = project.records(*RUN)
    note = NOTE.format(path=project.path)
    for record in (right, wrong):
        assert [each["text"].startswith(note) for each in record["notes"]] == [True]
    assert right["outcome"] == "passed"
    assert wrong["outcome"] == "failed"
