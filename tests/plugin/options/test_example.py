"""``--pallas-example``: that it replays a failure is shown in report/test_replay.py."""

from __future__ import annotations

import pytest

SUITE = ("--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-checks=forward")


@pytest.mark.parametrize("blob", ["nonsense", "AAAA", "AEEA", "====", "A"])
def test_one_that_is_none(project, blob):
    project.specs('name="add", kernel=add')
    result = project.run(*SUITE, f"--pallas-example={blob}")
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert "Traceback" not in text
    assert "site-packages" not in text
    assert f"--pallas-example={blob}: cannot replay add/forward" in text
    assert "Run it again without --pallas-example" in text
