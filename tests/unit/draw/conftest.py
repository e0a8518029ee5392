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
    """A function that returns the simplest example that fails, as text.

    Hypothesis itself may print how it was made instead.
    """

    def fail(strategy, fails):
        failed = []

        @seed(0)
        @settings(
            max_examples=200,
            database=None,
            deadline=None,
            phases=[Phase.generate, Phase.shrink],  # to explain takes longer than to shrink
        )
        @given(args=strategy)
        def run(args):
            if fails(args):
                failed.append(repr(args))
                raise AssertionError

        with pytest.raises(AssertionError):
            run()
        return f"args={failed[-1]}"

    return fail
