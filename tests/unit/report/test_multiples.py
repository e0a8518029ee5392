"""How an error is shown as a multiple of the baseline's."""

import pytest

from pytest_pallas.report.summary import times


@pytest.mark.parametrize(
    ("multiple", "shown"),
    [(0.0, "exact"), (0.04, "0.0x"), (1.25, "1.2x"), (999.9, "999.9x"), (3.5e31, ">999x")],
)
def test_a_baseline_without_error_does_not_widen_the_table(multiple, shown):
    assert times(multiple) == shown
