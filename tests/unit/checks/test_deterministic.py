"""``deterministic=False``: right answers may differ in their last bits from run to run."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from pytest_pallas import NotApplicableError
from pytest_pallas import strategies as pst
from pytest_pallas.backends.simulators import gpu_sim
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.forward import determinism
from pytest_pallas.checks.schedule import Runs, schedule
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.run.standalone import check
from pytest_pallas.spec import KernelSpec

X = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
ARGS = X, np.zeros(64, np.float32), np.zeros(1, np.int32)


def added_up(x, total, tickets, *, factor=1.0):
    """The sum of all blocks, added atomically in the order in which the programs run.

    A factor that depends on the order is an error, whatever the bits.
    """

    def body(x_ref, _total, _tickets, o_ref, tickets_ref):
        ticket = plgpu.atomic_add(tickets_ref, (0,), 1)
        late = (ticket != pl.program_id(0)).astype(jnp.float32)
        plgpu.atomic_add(o_ref, (slice(None),), x_ref[...] * (1 + (factor - 1) * late))

    whole = pl.BlockSpec(memory_space=pl.ANY)
    return pl.pallas_call(
        body,
        out_shape=[jax.ShapeDtypeStruct(each.shape, each.dtype) for each in (total, tickets)],
        grid=(8,),
        in_specs=[pl.BlockSpec((None, 64), lambda i: (i, 0)), whole, whole],
        out_specs=[whole, whole],
        input_output_aliases={1: 0, 2: 1},
        compiler_params=plgpu.CompilerParams(),
    )(x, total, tickets)[0]


def reference(x, total, tickets, *, factor=1.0):
    del tickets, factor
    return x.sum(0) + total


def context(**changes):
    arguments = Arguments(ARGS, options={"factor": changes.pop("factor", 1.0)})
    return CheckContext(
        kernel=added_up,
        reference=reference,
        arguments=arguments,
        backend=gpu_sim(),
        runs=Runs(),
        **changes,
    )


def test_another_order_changes_the_bits():
    assert schedule(context()).failed is not None
    assert determinism(context()).failed is not None


def test_another_order_of_additions_is_right():
    result = schedule(context(deterministic=False))
    assert result.comparisons
    assert result.failed is None


def test_an_order_that_changes_more_than_bits_is_wrong():
    assert schedule(context(deterministic=False, factor=1.5)).failed is not None


def test_determinism_does_not_apply():
    spec = KernelSpec(
        name="sum",
        kernel=added_up,
        reference=reference,
        inputs=pst.arrays("m n"),
        deterministic=False,
    )
    reason = determinism.unmet(spec, gpu_sim())
    assert reason is not None
    assert "deterministic=False" in reason
    with pytest.raises(NotApplicableError, match="deterministic=False"):
        check(
            added_up,
            *ARGS,
            reference=reference,
            deterministic=False,
            checks="determinism",
            backend="gpu-sim",
        )
