"""Arrays without elements: right on simulators, and beyond what JAX's interpreters can run."""

from __future__ import annotations

import pytest

TEST = """
import jax
import numpy as np
import pytest
from jax.experimental import pallas as pl

def double(x, *, blocks=True):
    rows = {"grid": (pl.cdiv(x.shape[0], 8),)}
    for name in ("in_specs", "out_specs"):
        spec = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
        rows[name] = [spec] if name == "in_specs" else spec
    return pl.pallas_call(
        lambda x_ref, o_ref: o_ref.__setitem__(..., x_ref[...] * 2),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        **(rows if blocks else {}),
    )(x)

@pytest.mark.parametrize("shape", [(0, 128), (8, 0), (0, 0)])
@pytest.mark.parametrize("blocks", [True, False])
def test_double(pallas_check, shape, blocks):
    x = np.zeros(shape, np.float32)
    pallas_check(
        double, x, tuning={"blocks": blocks}, reference=lambda x: x * 2, checks=CHECKS
    )
"""


def test_simulators_run_every_check(project):
    """A GPU has no block without elements: only the empty grid of whole blocks runs there."""
    project.write(test_empty=TEST.replace("CHECKS", '"all"'))
    records = project.records("test_empty.py", "--pallas-backend=tpu-sim,gpu-sim")
    assert len({record["test"] for record in records}) == 12
    failed = {record["test"] for record in records if record["outcome"] != "passed"}
    assert len(failed) == 5
    assert all("[gpu-sim-" in test for test in failed)
    assert not any("[gpu-sim-True-shape0]" in test for test in failed)
    messages = [record["message"] for record in records if record["outcome"] != "passed"]
    assert all("an array in a kernel has elements" in message for message in messages)


@pytest.mark.parametrize("backend", ["interpret", "tpu-interpret"])
def test_interpreters_leave_them_out(project, backend):
    """Where they divide by zero; without programs they may run."""
    project.write(test_empty=TEST.replace("CHECKS", '"forward"'))
    result = project.run("test_empty.py", f"--pallas-backend={backend}", "-v")
    assert "ZeroDivisionError" not in result.stdout.str()
    result.stdout.fnmatch_lines(
        [f"  needs a simulator such as tpu-sim: {backend} cannot run * on arrays without elements*"]
    )
    result.assert_outcomes(failed=0)
