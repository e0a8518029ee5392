"""``gpu-compile``: Mosaic GPU and Triton kernels, compiled for GPUs that are not there."""

from importlib import metadata

import pytest

from pytest_pallas.compile import cuda

needs_compilers = pytest.mark.skipif(cuda.missing() is not None, reason=str(cuda.missing()))

pytestmark = pytest.mark.without_libtpu

GPU_KERNELS = """
    import jax
    import jax.numpy as jnp
    import numpy as np
    from chips import double, twice
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import mosaic_gpu as plgpu

    def through_smem(x, rows):
        def body(x_ref, o_ref, large_smem, barrier):
            plgpu.copy_gmem_to_smem(x_ref, large_smem.at[pl.ds(0, x.shape[0])], barrier)
            plgpu.barrier_wait(barrier)
            plgpu.copy_smem_to_gmem(large_smem.at[pl.ds(0, x.shape[0])], o_ref)
            plgpu.wait_smem_to_gmem(0)

        return plgpu.kernel(
            body,
            out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
            scratch_types=[plgpu.SMEM((rows, 128), x.dtype), plgpu.Barrier()],
        )(x)

    def same(x):
        return x

    def ones_product():
        def hopper(o_ref, x_smem, y_smem):
            for smem in (x_smem, y_smem):
                smem[...] = jnp.ones((64, 64), jnp.float16)
            plgpu.commit_smem()

            def multiply(acc):
                plgpu.wgmma(acc, x_smem, y_smem)
                return acc[...]

            o_ref[...] = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))

        tiles = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
        smem = plgpu.SMEM((64, 64), jnp.float16, transforms=tiles)
        product = jax.ShapeDtypeStruct((64, 64), jnp.float32)
        return plgpu.kernel(hopper, out_type=product, scratch_types=[smem, smem])()

    def sixty_four():
        return jnp.full((64, 64), 64.0)
"""

SPEC = """
    import dataclasses
    from reference_kernels.mosaic_gpu.tma_copy_add_spec import SPEC as COPY_ADD

    SPEC = dataclasses.replace(COPY_ADD, file=__file__)
"""

#: Of each platform, as a user of either kind of kernel writes it.
TESTS = """
    from gpus import *

    def test_triton(pallas_check):
        report = pallas_check(double, np.ones((64, 128), np.float32), reference=twice)
        assert report.registers > 0
        assert report.spill_store_bytes == report.spill_load_bytes == 0

    def test_wgmma(pallas_check):
        pallas_check(ones_product, reference=sixty_four)

    def test_too_much(pallas_check):
        tuning = {"rows": 512}  # 256 KiB
        pallas_check(through_smem, np.ones((64, 128), np.float32), reference=same, tuning=tuning)

    def test_enough(pallas_check):
        tuning = {"rows": 64}
        report = pallas_check(
            through_smem, np.ones((64, 128), np.float32), reference=same, tuning=tuning
        )
        assert report.shared_bytes == 64 * 128 * 4 + 8  # and a barrier
"""


@pytest.fixture
def gpus(compiling):
    compiling.write(gpus=GPU_KERNELS, test_it=TESTS)
    return compiling


@needs_compilers
def test_kernels_of_both_kinds_compile_for_h100_and_are_refused_for_their_reasons(gpus):
    result = gpus.run("--pallas-backend=gpu-compile:h100", "--pallas-results=results.json")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*through_smem: forward on gpu-compile:h100: refused for h100: *256.0 KiB of SMEM*",
            "*large_smem f32[[]512,128[]] in SMEM 256.0 KiB*",
        ]
    )
    result.stdout.fnmatch_lines(
        [
            "kernel * h100",
            "double * compiled",
            "ones_product * compiled",
            "through_smem * REFUSED 1/2",
            "refused: through_smem (h100): *256.0 KiB of SMEM*",
            "kernel *chip *registers *shared memory *stack *spill stores *spill loads*",
            "double *h100 *",
            "ones_product *h100 *16 KiB*",
            "through_smem *h100 *32 KiB 14%*",
        ]
    )


@needs_compilers
def test_a_compiler_that_aborts_fails_one_check_and_its_last_words_say_why(gpus):
    result = gpus.run("--pallas-backend=gpu-compile:a100", "-k", "triton or wgmma")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*ones_product: forward on gpu-compile:a100: the compiler for a100 crashed: LLVM has "
            "no instruction of this chip for intrinsic %llvm.nvvm.*",
            "*in kernel hopper, *gpus.py:*",
            "ones_product * CRASHED 1/1",
        ]
    )


@needs_compilers
def test_what_a_later_chip_has_no_more_is_refused_by_ptxas(gpus):
    result = gpus.run("--pallas-backend=gpu-compile:b200", "-k", "triton or wgmma")
    result.assert_outcomes(passed=1, failed=1)
    text = result.stdout.str()
    assert "ones_product: forward on gpu-compile:b200: refused for b200: " in text
    assert "ptxas: Instruction 'wgmma.fence' not supported on .target 'sm_100a'" in text


@needs_compilers
def test_a_spec_is_compiled_for_the_chips_that_it_claims(compiling):
    compiling.write(specs=SPEC)
    found = compiling.records(
        "--pallas-suite=specs",
        "--pallas-backend=gpu-compile:h100,gpu-compile:a100",
        "--pallas-checks=forward",
        "--pallas-max-examples=2",
    )
    [compiled] = [record for record in found if record["outcome"] == "passed"]
    assert compiled["backend"] == "gpu-compile:h100"
    [typical, drawn] = compiled["compiled"]
    assert (typical["typical"], typical["signature"].split()[0]) == (True, "float32[4096,128]")
    assert "typical" not in drawn
    for report in (typical, drawn):
        assert report["registers"] > 0
        assert 0 < report["shared_bytes"] < report["shared_capacity"] == 232448


def test_without_the_compiler_a_usage_error_names_the_extra(compiling, monkeypatch):
    version = metadata.version

    def without(name):
        if name == "jax-cuda13-plugin":
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "version", without)
    compiling.write(test_it="def test_it(pallas_check): pass")
    result = compiling.run("--pallas-backend=gpu-compile:h100")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*'gpu-compile:h100' is not available*pip install 'pytest-pallas[[]gpu-compile[]]'*"]
    )
