"""What hypothesis says of a test, and draws that do not depend on what else is imported."""

import contextlib
import importlib.util
import sys

import hypothesis
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.database import InMemoryExampleDatabase

from pytest_pallas import strategies as pst
from pytest_pallas.compat import fuzzing
from pytest_pallas.compat.fuzzing import without_module_constants

NUMBERS = st.integers(0, 65_535)


def draws(strategy, context=contextlib.nullcontext):
    found = []

    @seed(1)
    @settings(max_examples=150, database=None, deadline=None, phases=[Phase.generate])
    @given(strategy)
    def run(value):
        found.append(repr(value))

    with context():
        run()
    return found


@pytest.fixture
def more_modules(tmp_path, monkeypatch):
    """A function that imports one more module, with constants that no other has."""

    def load(name):
        path = tmp_path / f"{name}.py"
        path.write_text(f"CONSTANTS = {list(range(300 + len(name), 60_000, 601))}\n")
        spec = importlib.util.spec_from_file_location(name, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(sys.modules, name, module)

    return load


@pytest.mark.parametrize(
    "strategy",
    [NUMBERS, pst.arrays("m k, k n", around=128), pst.permutations(300), pst.elements("float32")],
    ids=["integers", "arrays", "permutations", "elements"],
)
def test_the_same_draws_whatever_is_imported(strategy, more_modules):
    first = draws(strategy, without_module_constants)
    more_modules("constants_of_a_project")
    assert draws(strategy, without_module_constants) == first


@pytest.mark.skipif(
    hypothesis.__version_info__ < (6, 132), reason="hypothesis 6.131 draws no such constants"
)
def test_hypothesis_itself_draws_what_modules_say(more_modules):
    first = draws(NUMBERS)
    more_modules("constants_of_another_project")
    after = draws(NUMBERS)
    assert after != first
    assert draws(NUMBERS, without_module_constants) not in (first, after)
    assert draws(NUMBERS) == after  # as it was before


@pytest.mark.skipif(
    hypothesis.__version_info__ < (6, 132), reason="hypothesis 6.131 draws no such constants"
)
def test_constants_are_looked_up_once_for_all_draws():
    """Looking up is a tenth of drawing; what hypothesis itself has looked up stays as it is."""
    from hypothesis.internal.conjecture import providers

    draws(NUMBERS)
    own = providers.CONSTANTS_CACHE
    keys = set(own.cache)
    caches = []
    for _ in range(2):
        with without_module_constants():
            caches.append(providers.CONSTANTS_CACHE)
            known = set(caches[-1].cache)
            draws(NUMBERS)
    assert caches[0] is caches[1] is not own
    assert known
    assert providers.CONSTANTS_CACHE is own
    assert set(own.cache) == keys


def test_an_error_ends_it():
    before = draws(NUMBERS)
    with pytest.raises(ZeroDivisionError), without_module_constants():
        raise ZeroDivisionError
    assert draws(NUMBERS) == before


def test_settings_and_seed_of_a_test():
    @settings(max_examples=7, database=None)
    @seed(11)
    @given(NUMBERS)
    def run(value):
        del value

    assert fuzzing.hypothesis_settings(run).max_examples == 7
    assert fuzzing.hypothesis_seed(run) == 11
    fuzzing.set_hypothesis_settings(run, settings(max_examples=3, database=None))
    assert fuzzing.hypothesis_settings(run).max_examples == 3
    run()


def test_a_test_without_any():
    @given(NUMBERS)
    def run(value):
        del value

    assert fuzzing.hypothesis_seed(run) is None


def kept(*names):
    """What a failing test leaves in a database under these names: keys."""
    database = InMemoryExampleDatabase()
    for name in names:

        @settings(database=database, deadline=None)
        @seed(0)
        @given(NUMBERS)
        def run(value):
            assert value < 7

        fuzzing.set_database_key(run, name)
        with pytest.raises(AssertionError):
            run()
    return set(database.data)


def test_failures_are_kept_under_the_key_that_is_set():
    one, both = kept("one", "one"), kept("one", "two")
    assert one < both
    assert any(map(fuzzing.is_of_shrinking, one))
    assert not all(map(fuzzing.is_of_shrinking, one))


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (st.sampled_from([1, 5]), (1, 5)),
        (st.just(3), (3,)),
        (st.none(), (None,)),
        (st.booleans(), (False, True)),
        (st.one_of(st.just(1), st.sampled_from("ab")), (1, "a", "b")),
        (st.integers(), None),
        (st.sampled_from([1, 5]).map(str), None),
        (st.just(1) | st.integers(), None),
    ],
)
def test_choices_between_values(strategy, expected):
    assert fuzzing.sampled_elements(strategy) == expected


@pytest.mark.parametrize(
    ("strategy", "bounds", "third"),
    [
        (st.integers(1, 8), (1, 8), 3),
        (st.integers(1, 8).map(lambda n: 8 * n), (1, 8), 24),
        (st.integers(1), (1, None), 3),
        (st.integers(), (None, None), 3),
    ],
)
def test_the_range_of_integers(strategy, bounds, third):
    least, most, function = fuzzing.integer_range(strategy)
    assert (least, most) == bounds
    assert function(3) == third


@pytest.mark.parametrize("strategy", [st.just(3), st.floats(0, 1), st.integers().filter(bool)])
def test_other_strategies_have_no_range_of_integers(strategy):
    assert fuzzing.integer_range(strategy) is None
