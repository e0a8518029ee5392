"""The example of docs/reference.md that needs no pytest session."""

import subprocess
import sys

import pytest

KERNEL = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

def softmax(x):
    def body(x_ref, o_ref):
        e = jnp.exp(x_ref[...] - %s)
        o_ref[...] = e / e.sum(axis=-1, keepdims=True)

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)
"""


@pytest.mark.parametrize(
    ("subtracted", "wrong"), [("x_ref[...].max(axis=-1, keepdims=True)", 0), ("0", 1)]
)
def test_the_script(blocks, tmp_path, subtracted, wrong):
    [block] = [text for name, text in blocks("docs/reference.md") if name == "check_softmax.py"]
    package = tmp_path / "mykernels"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "softmax.py").write_text(KERNEL % subtracted)
    (tmp_path / "check_softmax.py").write_text(block)
    ended = subprocess.run(
        [sys.executable, "check_softmax.py"], cwd=tmp_path, capture_output=True, text=True
    )
    assert ended.returncode == wrong, ended.stderr
    assert ("softmax: forward on tpu-sim is wrong" in ended.stderr) == wrong
