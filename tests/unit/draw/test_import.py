import inspect
import subprocess
import sys

import pytest

from pytest_pallas import strategies as pst


def test_importing_the_strategies_does_not_import_jax():
    code = (
        "import sys; from pytest_pallas import strategies as pst; "
        "pst.arrays('m k, k n', dtype=pst.floats(), around=128); "
        "assert 'hypothesis' in sys.modules; assert 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


FUNCTIONS = [name for name in pst.__all__ if inspect.isfunction(getattr(pst, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_public_functions_have_an_example_and_keyword_only_arguments(name):
    function = getattr(pst, name)
    if name != "as_arguments":  # for those who write checks
        assert "Example::" in function.__doc__
    assert "Raises:" in function.__doc__
    for parameter in inspect.signature(function).parameters.values():
        assert parameter.default is parameter.empty or parameter.kind is parameter.KEYWORD_ONLY


@pytest.mark.parametrize("name", pst.__all__)
def test_public_names_are_documented(name):
    assert callable(getattr(pst, name))
    assert getattr(pst, name).__doc__
