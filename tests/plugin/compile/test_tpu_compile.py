"""``tpu-compile``: kernels nobody here wrote, compiled for chips that are not there."""

import json
import sys

import pytest

TEST = """
    from chips import *

    def test_it(pallas_check):
        {body}
"""


def check(compiling, body, *args):
    compiling.write(test_it=TEST.format(body=body))
    return compiling.run("--pallas-results=results.json", *args)


def records(compiling):
    return json.loads((compiling.path / "results.json").read_text())["records"]


def test_a_kernel_compiles_and_its_cost_is_reported(compiling):
    result = check(
        compiling, "pallas_check(double, X, reference=twice)", "--pallas-backend=tpu-compile:v6e"
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["kernel*v6e", "double*compiled", "kernel*chip*VMEM*bundles*"])
    [record] = records(compiling)
    [report] = record["compiled"]
    assert record["backend"] == "tpu-compile:v6e"
    assert report["status"] == "compiled"
    assert report["signature"] == "float32[64,480]"
    assert report["target"] == "v6e"
    assert report["compiler"].startswith("libtpu ")
    # One window of 64 x 512 float32 each for the input and the output, at the least.
    assert 2 * 64 * 512 * 4 <= report["vmem_bytes"] <= report["vmem_capacity"] / 10
    assert report["bundles"] >= 64 * 512 / (8 * 128)


def test_costs_are_skipped_but_kernels_are_counted(compiling):
    result = check(
        compiling,
        "pallas_check(double, X, reference=twice)",
        "--pallas-backend=tpu-compile:v6e",
        "--pallas-cost=skip",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["kernel*v6e", "double*compiled"])
    result.stdout.no_fnmatch_line("*bundles*")
    [record] = records(compiling)
    [report] = record["compiled"]
    assert (report["status"], report["kernel_calls"]) == ("compiled", 1)
    assert report["costs_skipped"]
    assert report.keys().isdisjoint({"kernels", "bundles", "vmem_bytes"})


def test_all_chips_are_compiled_for(compiling):
    result = check(
        compiling, "pallas_check(double, X, reference=twice)", "--pallas-backend=tpu-compile:all"
    )
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines(["kernel  v4 * v5e * v5p * v6e * tpu7x*", "double*compiled*"])


def test_an_illegal_tile_is_refused_with_the_operand_and_the_line(compiling):
    result = check(
        compiling,
        "pallas_check(in_blocks, X, reference=twice, tuning={'rows': 8, 'columns': 48})",
        "--pallas-backend=interpret,tpu-compile:v6e",
    )
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*in_blocks: forward on tpu-compile:v6e: refused for v6e: *(8, 48)*",
            "*chips.py:*",
            "*inputs*float32[[]64, 480[]]",
            "in_blocks*REFUSED 1/1",
            "refused: in_blocks (v6e): *",
        ]
    )
    failed = next(record for record in records(compiling) if record["outcome"] == "failed")
    [report] = failed["compiled"]
    assert report["status"] == "refused"
    assert len(report["message"].splitlines()) <= 6
    assert "The Pallas TPU lowering currently requires" in report["text"]


def test_what_is_no_kernel_fails_loudly(compiling):
    result = check(
        compiling, "pallas_check(twice, X, reference=twice)", "--pallas-backend=tpu-compile:v6e"
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*twice, lowered for tpu, has none of tpu_custom_call*"])


def test_a_kernel_whose_result_nobody_uses_fails_loudly(compiling):
    compiling.write(
        unused="""
        from chips import double

        def unused(x):
            double(x)
            return x * 2
        """
    )
    result = check(
        compiling,
        "import unused; pallas_check(unused.unused, X, reference=twice)",
        "--pallas-backend=tpu-compile:v6e",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*no*Pallas kernel*"])


def test_interpret_is_overruled(compiling):
    compiling.write(
        quiet="""
        from jax.experimental.pallas import pallas_call
        import jax

        def double(x):
            def body(x_ref, o_ref):
                o_ref[...] = x_ref[...] * 2
            return pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
                               interpret=True)(x)
        """
    )
    result = check(
        compiling,
        "import quiet; pallas_check(quiet.double, X, reference=twice)",
        "--pallas-backend=tpu-compile:v5e",
    )
    result.assert_outcomes(passed=1)
    [record] = records(compiling)
    assert record["compiled"][0]["bundles"] > 0


def test_pallas_check_gives_the_report(compiling):
    compiling.write(
        test_it="""
        from chips import *

        def test_it(pallas_check):
            report = pallas_check(double, X, reference=twice)
            assert report.status == "compiled"
            assert report.kernel == "_double"
            assert report.spills == 0
            assert report.vmem_bytes < report.vmem_capacity
        """
    )
    compiling.run("--pallas-backend=tpu-compile:v5e").assert_outcomes(passed=1)


def test_what_needs_arrays_is_compiled_and_then_skipped(compiling):
    compiling.write(
        test_it="""
        from chips import *

        def test_good(pallas_run):
            assert (pallas_run(double, X) == 2 * X).all()

        def test_bad(pallas_run):
            pallas_run(in_blocks, X, rows=8, columns=48)
        """
    )
    result = compiling.run("--pallas-backend=tpu-compile:v6e", "-rs")
    result.assert_outcomes(skipped=1, failed=1)
    result.stdout.fnmatch_lines(["*double compiled; tpu-compile:v6e executes nothing*"])


def test_a_kernel_that_needs_values_says_so(compiling):
    result = check(
        compiling,
        "pallas_check(double, X, reference=twice, jit=False)",
        "--pallas-backend=tpu-compile:v6e",
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*double needs the values of its arguments (jit=False)*"])


def test_auto_compiles_nothing(compiling):
    result = check(compiling, "pallas_check(double, X, reference=twice)")
    result.assert_outcomes(passed=1)
    assert {record["backend"] for record in records(compiling)} == {"tpu-sim"}


def test_a_check_that_asks_for_equal_bits_has_nothing_to_compile(compiling):
    check(
        compiling,
        "pallas_check(double, X, reference=twice, checks=['forward', 'determinism'])",
        "--pallas-backend=tpu-compile:v6e",
    ).assert_outcomes(passed=1)
    by_check = {record["check"]: record for record in records(compiling)}
    assert by_check["forward"]["compiled"]
    assert by_check["determinism"]["notes"] == [{"kind": "run", "text": "nothing to compile"}]


@pytest.mark.without_libtpu
def test_without_the_compiler_a_usage_error_names_the_extra(compiling, monkeypatch):
    monkeypatch.setitem(sys.modules, "libtpu", None)
    compiling.write(test_it=TEST.format(body="pallas_check(double, X, reference=twice)"))
    result = compiling.run("--pallas-backend=tpu-compile:v6e")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*'tpu-compile:v6e' is not available*pip install 'pytest-pallas[[]tpu-compile[]]'*"]
    )


def test_float32_is_multiplied_in_one_three_or_six_passes(compiling):
    """What the simulator takes from libtpu's code: the instructions of the matrix unit."""
    compiling.write(
        test_it="""
            import jax
            import jax.numpy as jnp
            import numpy as np
            import pytest
            from jax.experimental import pallas as pl

            X = np.ones((128, 128), np.float32)

            @pytest.mark.parametrize("precision", ["default", "high", "highest"])
            def test_product(pallas_check, precision):
                def body(x, y, o):
                    o[...] = jnp.dot(x[...], y[...], precision=precision)

                kernel = pl.pallas_call(body, out_shape=X)
                pallas_check(lambda x, y: kernel(x, y), X, X, reference=jnp.dot)
        """
    )
    compiling.run("--pallas-backend=tpu-compile:all", "--pallas-dump=dumps").assert_outcomes(
        passed=15
    )
    counts = {}
    for path in compiling.path.glob("dumps/*/*/*[0-9]-final_bundles*"):
        products = path.read_text().count("vmatmul")
        if products:
            counts.setdefault(path.parts[-3].split("-")[-2], []).append(products)
    assert sorted(counts) == ["tpu7x", "v4", "v5e", "v5p", "v6e"]
    for chip, (one, three, six) in ((chip, sorted(found)) for chip, found in counts.items()):
        assert (three, six) == (3 * one, 6 * one), chip
