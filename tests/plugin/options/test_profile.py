"""--pallas-profile: how much is drawn where nothing else is said."""

import pytest

RUN = ("--pallas-suite=specs", "--pallas-checks=forward")


@pytest.fixture
def suite(project):
    """A spec with many shapes."""
    inputs = 'pst.arrays("m n, m n", around=8)'
    project.specs(f'name="add", kernel=add, inputs={inputs}')
    return project


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
def test_the_profile_sets_the_number_of_examples(suite, words, examples):
    records = suite.records(*RUN, "--pallas-backend=interpret", *words)
    assert [record["examples"] for record in records] == [examples]


@pytest.mark.parametrize(
    ("words", "examples"),
    [
        (("--pallas-profile=quick",), 10),
        (("--pallas-profile=quick", "--pallas-max-examples=3"), 3),
        ((), 16),
    ],
    ids=["quick", "overruled", "ci"],
)
def test_more_shapes_are_drawn_where_a_new_one_is_cheap(suite, words, examples):
    (record,) = suite.records(*RUN, "--pallas-backend=tpu-sim", *words)
    assert (record["examples"], len(record["signatures"])) == (examples, examples)


def test_of_several_devices_half_as_many_are_drawn(project):
    inputs = 'pst.arrays("m n, m n", around=8, multiple_of={"m": 2})'
    project.specs(
        'name="add", kernel=add_sharded, reference=reference_on_mesh, meshes=({"x": 1}, {"x": 2}), '
        f"inputs=lambda mesh: {inputs}"
    )
    records = project.records(*RUN, "--pallas-backend=tpu-sim", "--pallas-profile=quick")
    drawn = {record["mesh"]["x"]: record["examples"] for record in records}
    assert drawn == {1: 10, 2: 5}
