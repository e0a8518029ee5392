"""What hypothesis raises to reject an example."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from pytest_pallas.compat.fuzzing import is_rejection


@pytest.mark.parametrize("refuse", [reject, lambda: assume(False)], ids=["reject", "assume"])
def test_what_rejects_an_example_is_known(refuse):
    found = []

    @settings(max_examples=1, database=None, suppress_health_check=list(HealthCheck))
    @given(st.none())
    def run(_):
        try:
            refuse()
        except Exception as error:
            found.append(is_rejection(error))

    run()
    assert found == [True]


def test_what_fails_is_no_rejection():
    assert not is_rejection(ValueError())
