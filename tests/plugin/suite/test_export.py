"""The check ``export`` where nothing is compiled."""

from __future__ import annotations

from pathlib import Path

from pallas_test_support.failure_scripts import run_scripts

EXPORT = ("--pallas-suite=specs", "--pallas-checks=export", "--pallas-max-examples=8")

#: As ``calls_the_host`` of the wrong kernels: right on this process, and nowhere else.
CALLS_THE_HOST = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from kernels import add

    def add_on_host(x, y):
        zero = jax.pure_callback(
            lambda: np.zeros((), np.float32), jax.ShapeDtypeStruct((), jnp.float32)
        )
        return add(x + zero, y)
"""


def test_a_call_of_the_host_is_found_with_auto(project):
    project.write(host=CALLS_THE_HOST)
    project.specs('name="add", kernel=add', 'name="host", kernel=__import__("host").add_on_host')
    found = project.records(*EXPORT)
    assert [(r["kernel"], r["backend"], r["outcome"]) for r in found] == [
        ("add", "tpu-sim", "passed"),
        ("host", "tpu-sim", "failed"),
    ]
    message = found[1]["message"]
    assert "export on tpu-sim" in message
    assert "jax.export rejects it: it has a callback to Python" in message


def test_a_script_shows_it_on_an_interpreter(project):
    """What is simulated is not read back from bytes."""
    project.write(host=CALLS_THE_HOST)
    project.specs('name="host", kernel=__import__("host").add_on_host')
    [record] = project.records(*EXPORT)
    [ended] = run_scripts([Path(record["script"])])
    assert ended.status == 1, ended.output
    assert "call back to Python on the host" in ended.output
