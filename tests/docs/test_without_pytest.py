"""The example of docs/reference.md that needs no pytest session."""

import pytest
from pallas_test_support.forked_python import run_python

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
    ended = run_python("check_softmax.py", cwd=tmp_path)
    assert ended.returncode == wrong, ended.stderr
    assert ("softmax: forward on tpu-sim is wrong" in ended.stderr) == wrong


TEST = """
import jax
import numpy as np
from mykernels.softmax import softmax

def test_large(pallas_check):
    pallas_check(softmax, np.array([[0, 100]], np.float32), reference=jax.nn.softmax)
"""


def test_the_script_of_a_failure_is_the_one_shown(blocks, pytester):
    [shown] = [text for _, text in blocks("docs/reference.md") if "For a bug report" in text]
    package = pytester.mkpydir("mykernels")
    (package / "softmax.py").write_text(KERNEL % "0")
    pytester.makepyfile(test_large=TEST)
    pytester.syspathinsert()
    result = pytester.runpytest("--pallas-backend=tpu-sim", "--pallas-results=results.json")
    result.assert_outcomes(failed=1)
    [path] = (pytester.path / "pallas-failures").glob("*.py")
    comments, separator, body = path.read_text().partition("import sys\n")
    assert "# softmax: forward on tpu-sim is wrong\n" in comments
    assert (separator + body).replace(str(pytester.path), "/home/me/project") == shown
    ended = run_python(path)
    assert ended.returncode == 1
    assert "softmax: forward on tpu-sim is wrong" in ended.stderr
