"""What kernels use of a simulated chip that no document describes."""

from __future__ import annotations

KERNELS = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import mosaic_gpu as plgpu


def counted(x):
    def body(x, o):
        @plgpu.dynamic_scheduling_loop(("i",))
        def _visit(info):
            o[info.index] = x[info.index] + 1

    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return plgpu.kernel(body, out_type=shape, grid=x.shape, grid_names=("i",))(x)


def test_counted(pallas_check):
    pallas_check(counted, np.arange(4, dtype=np.int32), reference=lambda x: x + 1)
"""
TEXT = "try_cluster_cancel takes over, is not published"


def test_records_the_terminal_and_the_page_say_so(project):
    project.write(test_counted=KERNELS)
    run = project.run("--pallas-backend=gpu-sim:b200", "--pallas-html=page.html")
    run.assert_outcomes(passed=1)
    (line,) = [each for each in run.outlines if each.startswith("unverified: ")]
    assert line.startswith("unverified: counted: ")
    assert line.endswith(TEXT)
    assert f"{TEXT}</td>" in (project.path / "page.html").read_text()
    (record,) = project.records("--pallas-backend=gpu-sim:b200")
    (text,) = record["unverified"]
    assert text.endswith(TEXT)


def test_nothing_is_said_where_everything_is_documented(project):
    project.write(
        test_add="""
        import numpy as np
        from kernels import add

        def test_add(pallas_check):
            pallas_check(add, *[np.ones((8, 128), np.float32)] * 2, reference=lambda x, y: x + y)
        """
    )
    run = project.run("--pallas-backend=gpu-sim:b200")
    run.assert_outcomes(passed=1)
    run.stdout.no_fnmatch_line("*unverified*")
    (record,) = project.records("--pallas-backend=gpu-sim:b200")
    assert record["unverified"] == []
