import pytest
from hypothesis import Phase, given, seed, settings


@pytest.fixture
def draws():
    """A function that runs a strategy as a test would, and returns what it drew."""

    def collect(strategy, examples=100, number=0):
        found = []

        @seed(number)
        @settings(max_examples=examples, database=None, deadline=None, phases=[Phase.generate])
        @given(strategy)
        def run(value):
            found.append(value)

        run()
        return found

    return collect


@pytest.fixture
def shrunk():
    """A function that returns how hypothesis prints the simplest example that fails."""

    def fail(strategy, fails):
        @seed(0)
        @settings(max_examples=200, database=None, deadline=None)
        @given(args=strategy)
        def run(args):
            assert not fails(args)

        with pytest.raises(AssertionError) as caught:
            run()
        return "".join(caught.value.__notes__)

    return fail
