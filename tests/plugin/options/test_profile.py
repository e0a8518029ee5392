"""--pallas-profile: how much is drawn where nothing else is said."""

import pytest


@pytest.mark.parametrize(
    ("words", "examples"),
    [
        ((), 8),
        (("--pallas-profile=quick",), 2),
        (("--pallas-profile=ci",), 8),
        (("--pallas-profile=quick", "--pallas-max-examples=3"), 3),
    ],
    ids=["default", "quick", "ci", "overruled"],
)
def test_examples(project, words, examples):
    inputs = 'pst.arrays("m n, m n", around=8)'
    project.specs(f'name="add", kernel=add, inputs={inputs}')
    records = project.records(
        "--pallas-suite=specs", "--pallas-backend=interpret", "--pallas-checks=forward", *words
    )
    assert [record["examples"] for record in records] == [examples]
