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


@pytest.mark.parametrize("name", pst.__all__)
def test_public_names_are_documented(name):
    assert callable(getattr(pst, name))
    assert getattr(pst, name).__doc__
