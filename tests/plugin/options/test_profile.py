"""--pallas-profile: how much is drawn where nothing else is said."""

import pytest

RUN = ("--pallas-suite=specs", "--pallas-checks=forward")


OWN = """
    import hypothesis
    from hypothesis import given, settings, strategies as st
    from pytest_pallas import strategies as pst

    {decorator}
    @given({strategy})
    def test_draw({names}):
        with open("draws.txt", "a") as file:
            file.write("x")
"""

ARRAYS = 'x=pst.arrays("n")'


@pytest.mark.parametrize(
    ("words", "decorator", "strategy", "fixture", "count"),
    [
        (("--pallas-profile=quick",), "", "x=st.integers()", "pallas_backend", 10),
        (("--pallas-profile=thorough",), "", "x=st.integers()", "pallas_backend", 128),
        (("--pallas-profile=quick",), "@settings(max_examples=7)", ARRAYS, "pallas_backend", 7),
        (("--pallas-profile=quick",), "@settings(deadline=None)", ARRAYS, "pallas_backend", 10),
        (("--pallas-seed=1",), "", "x=st.integers()", "pallas_backend", 100),
        (("--pallas-profile=quick", "--pallas-max-examples=3"), "", ARRAYS, "pallas_backend", 3),
        (
            ("--pallas-profile=quick", "--hypothesis-profile=own"),
            "",
            ARRAYS,
            "pallas_backend",
            20,
        ),
        # Without a fixture, but with a strategy of ours.
        (("--pallas-profile=quick",), "", ARRAYS, "", 10),
        (("--pallas-max-examples=4",), "", ARRAYS, "", 4),
        (("--pallas-profile=quick",), "", 'x=pst.arrays("n").map(len)', "", 10),
        (("--pallas-profile=quick",), "", 'x=st.tuples(st.none(), pst.arrays("n"))', "", 10),
        (("--pallas-profile=quick",), "@settings(max_examples=7)", ARRAYS, "", 7),
        (("--pallas-profile=quick",), "", "x=st.integers()", "", 100),
    ],
)
def test_tests_of_ones_own_follow_the_profile(project, words, decorator, strategy, fixture, count):
    names = ", ".join(filter(None, (fixture, "x")))
    project.write(
        test_draw=OWN.format(decorator=decorator, strategy=strategy, names=names),
        conftest="""
        from hypothesis import settings

        settings.register_profile("own", max_examples=20, deadline=None)
        """,
    )
    project.spawn("--pallas-backend=tpu-sim", *words).assert_outcomes(passed=1)
    assert len((project.path / "draws.txt").read_text()) == count


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
    ("words", "shapes", "variants"),
    [
        (("--pallas-profile=quick",), 16, 5),
        (("--pallas-profile=quick", "--pallas-max-examples=3"), 3, 0),
        ((), 32, 4),
    ],
    ids=["quick", "overruled", "ci"],
)
def test_more_shapes_are_drawn_where_a_new_one_is_cheap(suite, words, shapes, variants):
    (record,) = suite.records(*RUN, "--pallas-backend=tpu-sim", *words)
    assert (len(record["signatures"]), record["examples"]) == (shapes, shapes + variants)


def test_of_several_devices_half_as_many_are_drawn(project):
    inputs = 'pst.arrays("m n, m n", around=8, multiple_of={"m": 2})'
    project.specs(
        'name="add", kernel=add_sharded, reference=reference_on_mesh, meshes=({"x": 1}, {"x": 2}), '
        f"inputs=lambda mesh: {inputs}"
    )
    records = project.records(*RUN, "--pallas-backend=tpu-sim", "--pallas-profile=quick")
    drawn = {record["mesh"]["x"]: len(record["signatures"]) for record in records}
    assert drawn == {1: 16, 2: 8}
