"""Old names of the package."""

import pytest

from pytest_pallas import mutation


@pytest.mark.parametrize(
    ("old", "new"), [("At", "EquationSite"), ("Kernel", "KernelSite"), ("New", "Replacement")]
)
def test_an_old_name_works_and_says_the_new_one(old, new):
    with pytest.warns(DeprecationWarning, match=f"is pytest_pallas.mutation.{new} now"):
        assert getattr(mutation, old) is getattr(mutation, new)


def test_a_name_that_never_was_is_an_error():
    with pytest.raises(AttributeError, match="never"):
        _ = mutation.never
