"""``assume`` and ``reject`` mean what they mean elsewhere, wherever they are called."""

from __future__ import annotations

import pytest

TEST = """
    from hypothesis import given, reject
    from kernels import add
    from pytest_pallas import strategies as pst

    def picky(x, y):
        if x.shape[0] > 3:
            reject()
        return x + y

    def kernel(x, y):
        return add(x, 0 * y + picky(x, y) - x)

    def plain(x, y):
        return x + y

    @given(args=pst.arrays("m n, m n", values="integers"))
    def test_add(pallas_check, args):
        pallas_check(RUN, *args, reference=REFERENCE, checks="forward")
"""

ONE = ("--pallas-backend=tpu-sim", "--pallas-max-examples=20")


@pytest.mark.parametrize(("run", "reference"), [("add", "picky"), ("kernel", "plain")])
def test_a_test_goes_on_with_other_examples(project, run, reference):
    project.write(test_add=TEST.replace("RUN", run).replace("REFERENCE", reference))
    project.run(*ONE).assert_outcomes(passed=1)


def test_a_spec_does_not_count_rejected_examples(project):
    project.specs('name="add", kernel=add, reference=picky, checks=("forward",)')
    path = project.path / "specs.py"
    picky = "def picky(x, y):\n    assume(x.shape[0] <= 8)\n    return x + y\n\n\nSPEC_0"
    text = path.read_text().replace("SPEC_0", picky, 1)
    path.write_text(f"from hypothesis import assume\n{text}")
    [record] = project.records("--pallas-suite=specs", *ONE)
    assert record["outcome"] == "passed"
    assert record["examples"] > 0


def test_a_kernel_that_rejects_is_traced_with_other_examples(project):
    """The check ``grid`` runs nothing, and calls the kernel all the same."""
    project.write(
        specs="""
        import jax
        from hypothesis import assume
        from jax.experimental import pallas as pl
        from pytest_pallas import KernelSpec
        from pytest_pallas import strategies as pst

        def body(x_ref, o_ref):
            o_ref[...] = x_ref[...]

        def picky(x):
            assume(x.shape[0] % 8 == 0)
            block = pl.BlockSpec((8, 128), lambda i: (i, 0))
            return pl.pallas_call(
                body, grid=(x.shape[0] // 8,), in_specs=[block], out_specs=block, out_shape=x
            )(x)

        SPEC = KernelSpec(
            name="picky", kernel=picky, reference=lambda x: x, checks=("grid",),
            inputs=pst.arrays("m n", around={"m": 8}, dims={"n": [128]}),
        )
        """
    )
    [record] = project.records("--pallas-suite=specs", *ONE)
    assert record["outcome"] == "passed", record["message"]
    assert record["examples"] > 0
