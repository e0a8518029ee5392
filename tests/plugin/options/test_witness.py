"""``--pallas-schedules`` and ``--pallas-witness``: an order is found, told, and runs again."""

from __future__ import annotations

import json
import re

import pytest

#: Device 0 notes how many others have come: that depends on who is late.
ARRIVALS = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    import pytest
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu
    from jax.sharding import PartitionSpec as P

    def body(x_ref, o_ref, sem):
        o_ref[0] = x_ref[0]
        pl.semaphore_signal(sem, 1, device_id=0)

        @pl.when(jax.lax.axis_index("x") == 0)
        def _():
            pl.semaphore_wait(sem, 2)
            o_ref[0] += pl.semaphore_read(sem)
            pl.semaphore_wait(sem, 1)

    def arrivals(x, mesh):
        kernel = pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
            out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
            scratch_shapes=[pltpu.SemaphoreType.REGULAR],
            compiler_params=pltpu.CompilerParams(collective_id=None, has_side_effects=True),
        )
        specs = {"in_specs": P("x"), "out_specs": P("x"), "check_vma": False}
        return jax.shard_map(kernel, mesh=mesh, **specs)(x)

    @pytest.mark.parametrize("check", ["schedule", "races"])
    def test_arrivals(pallas_check, pallas_mesh, check):
        x = np.arange(3, dtype=np.int32)
        pallas_check(
            arrivals, x, reference=lambda x, mesh: x, mesh=pallas_mesh(x=3), checks=[check]
        )
"""


def records(project, *args):
    return {
        record["check"]: record for record in project.records("--pallas-backend=tpu-sim", *args)
    }


def test_a_failure_names_an_order_that_runs_again(project):
    project.write(test_arrivals=ARRIVALS)
    page = project.path / "page.html"
    found = records(project, f"--pallas-html={page}")
    failed, passed = found["schedule"], found["races"]
    assert (failed["outcome"], passed["outcome"]) == ("failed", "passed")
    assert failed["orders"] == passed["orders"]  # their runs are shared
    assert (failed["orders"]["wrong"], failed["orders"]["unconfirmed"]) == (1, 0)
    witness = failed["witness"]
    assert f"--pallas-witness={witness}" in failed["replay"]
    assert f"--pallas-witness={witness} runs an order in which it shows" in failed["message"]
    assert "is late" in failed["message"]
    order = failed["pictures"]["order"]
    assert len(order["lanes"]) == 3
    assert {span["kind"] for span in order["spans"]} == {"wait", "signal"}
    assert order["turns"]
    assert "picture-order" in page.read_text()

    again = records(project, f"--pallas-witness={witness}", "-k", "schedule")
    assert again["schedule"]["message"] == failed["message"]
    assert again["schedule"]["orders"] is None  # nothing is explored
    by_file = records(project, f"--pallas-replay={failed['example']}")
    assert by_file["schedule"]["message"] == failed["message"]
    trace = project.path / "trace.json"
    project.run("--pallas-backend=tpu-sim", "-k", "schedule", f"--pallas-trace={trace}")
    events = json.loads(trace.read_text())["traceEvents"]
    assert any("the last step out of order" in event["name"] for event in events)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("soon", "--pallas-witness: 'soon' is no witness"),
        ("9-v6e-3fa29c1d-12.1", "has version 9, and this simulator replays version"),
        ("1-v99-3fa29c1d-12.1", "is for 'v99', which is no target"),
    ],
)
def test_no_witness(project, text, problem):
    result = project.run(f"--pallas-witness={text}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert re.search(rf"^ERROR: .*{problem}", "\n".join(result.errlines), re.MULTILINE)


def test_an_order_of_another_call_is_told_in_one_sentence(project):
    project.write(test_arrivals=ARRIVALS)
    witness = "1-v6e-00000000-3.1"
    (record,) = records(project, f"--pallas-witness={witness}", "-k", "schedule").values()
    assert record["error_type"] == "OptionError"
    assert f"--pallas-witness={witness}: the witness is of call 00000000" in record["message"]


def test_a_budget_of_no_runs(project):
    result = project.run("--pallas-schedules=0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "must be the most runs of a call, at least 1, not '0'" in "\n".join(result.errlines)
