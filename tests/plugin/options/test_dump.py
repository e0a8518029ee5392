"""--pallas-dump keeps what the compiler makes of a kernel."""

import re

import pytest

from pytest_pallas.compile import libtpu

#: The chip and the arguments, as the name of a folder.
ARGUMENTS = "v6e-float32-8,128-float32-8,128"

TEST = """
    import numpy as np
    from kernels import *

    X = np.ones((8, 128), np.float32)

    def test_add(pallas_check):
        pallas_check(add, X, X, reference=reference)
"""


@pytest.mark.skipif(libtpu.missing() is not None, reason="libtpu is not installed")
def test_every_stage_is_kept(project):
    project.write(test_it=TEST)
    for _ in range(2):  # also what is in the cache by now
        result = project.run("--pallas-backend=tpu-compile:v6e", "--pallas-dump=dumps")
        result.assert_outcomes(passed=1)
        folder = project.path / "dumps" / "test_add-tpu-compile-v6e" / ARGUMENTS
        names = sorted(path.name for path in folder.iterdir())
        assert "pallas_call" in (folder / "jaxpr.txt").read_text()
        assert "tpu_custom_call" in (folder / "lowered.mlir").read_text()
        assert "tpu_custom_call" in (folder / "optimized.hlo").read_text()
        assert any("mosaic-dump" in name for name in names)
        kernels = [n for n in names if re.fullmatch(r"[a-z_]+\.\d+-\d+-final_bundles.txt", n)]
        assert len(kernels) == 1, names
        assert "vld" in (folder / kernels[0]).read_text()
        for path in folder.iterdir():
            path.unlink()


@pytest.mark.skipif(libtpu.missing() is not None, reason="libtpu is not installed")
def test_each_program_has_a_folder(project):
    project.write(
        test_it="""
        import numpy as np
        from kernels import *

        def test_add(pallas_check):
            for rows in (8, 16):
                x = np.ones((rows, 128), np.float32)
                pallas_check(add, x, x, reference=reference)
        """
    )
    project.run("--pallas-backend=tpu-compile:v6e", "--pallas-dump=dumps").assert_outcomes(passed=1)
    folder = project.path / "dumps" / "test_add-tpu-compile-v6e"
    assert sorted(path.name for path in folder.iterdir()) == [
        "v6e-float32-16,128-float32-16,128",
        ARGUMENTS,
    ]
