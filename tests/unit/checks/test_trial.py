"""Old names of the context of a check."""

import pytest

from pytest_pallas.checks import context


@pytest.mark.parametrize(
    ("old", "new"), [("Trial", "CheckContext"), ("TrialResult", "CheckResult"), ("run", "run")]
)
def test_an_old_name_works_and_says_the_new_one(old, new):
    from pytest_pallas.checks import trial

    with pytest.warns(DeprecationWarning, match=rf"context\.{new} now"):
        assert getattr(trial, old) is getattr(context, new)


def test_a_name_that_never_was_is_an_error():
    from pytest_pallas.checks import trial

    with pytest.raises(AttributeError, match="never"):
        _ = trial.never
