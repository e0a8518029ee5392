"""Specs of ``blackwell_matmul``."""

from __future__ import annotations

from typing import Any, get_args

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels.mosaic_gpu._claims import BLACKWELL
from reference_kernels.mosaic_gpu.blackwell_matmul import Schedule, blackwell_matmul, reference

_RELATIONS = (
    Linear(0),
    Linear(1),
    Permuted({0: 1, 1: 0}),
)
_DTYPES = ("bfloat16", "float16", "float8_e4m3fn")


def _inputs(**tuning: Any) -> Any:
    return pst.arguments(
        pst.arrays(
            "m k, k n",
            dtype=pst.floats(*_DTYPES),
            # More tiles than fit in tensor memory, and more steps than there are stages.
            dims={"m": [1, 129, 300], "k": [1, 129, 300], "n": [100, 300]},
        ),
        tuning={"block_n": 128, "stages": st.sampled_from([2, 3]), **tuning},
    )


def _typical(**tuning: Any) -> tuple[pst.Arguments, ...]:
    dims = {"m": 4096, "k": 4096, "n": 8192}
    return tuple(
        pst.shaped("m k, k n", dtype=dtype, dims=dims, tuning=tuning)
        for dtype in ("bfloat16", "float8_e4m3fn")
    )


_ALL_ARRIVED = "without pairs nobody else arrives, and what the output waits for comes last"
_NO_PAIR = (
    EquivalentMutant(
        operator="guard",
        change="always",
        source='@pl.when(jax.lax.axis_index("pair") == 0)',
        reason="without pairs every block is the only one of its cluster: member is 0",
    ),
    EquivalentMutant(
        operator="arithmetic",
        change="add -> sub",
        source="mine = pl.ds(tile.row + member * _ROWS, _ROWS)",
        reason="likewise",
    ),
    EquivalentMutant(
        operator="guard",
        change="of the next index",
        source="pl.when(role == _PRODUCTS)(lambda: _multiply(",
        reason="the warpgroup that stores may start the products as well, and then waits for them",
    ),
    EquivalentMutant(
        operator="guard",
        change="always",
        source="pl.when(role == _OUTPUT)(lambda: plgpu.wait_smem_to_gmem(0))",
        reason="the other warpgroups have started no copy",
    ),
    *(
        EquivalentMutant(operator=operator, change=change, source=source, reason=_ALL_ARRIVED)
        for operator, change, source in (
            ("arithmetic", "add -> sub", "return carry + 1"),
            ("arithmetic", "sub -> add", "@pl.loop(jnp.maximum(count - slots, 0), count)"),
            ("wait", "dropped", "plgpu.barrier_wait(barriers.at[jax.lax.rem(each, slots)])"),
            ("guard", "never", "pl.when(role == _LOADS)(lambda: _see_last("),
            ("guard", "of the index before", "pl.when(role == _LOADS)(lambda: _see_last("),
            ("guard", "never", "pl.when(role == _PRODUCTS)(lambda: _see_last("),
        )
    ),
)

SPEC = KernelSpec(
    name="blackwell_matmul",
    kernel={"gpu": blackwell_matmul},
    reference=reference,
    inputs=_inputs(pair=False, schedule="static", programs=st.sampled_from([1, 2])),
    backends=BLACKWELL,
    exact=True,
    relations=_RELATIONS,
    typical=_typical(pair=False, schedule="static"),
    equivalent=_NO_PAIR,
)

SPEC_DYNAMIC = KernelSpec(
    name="blackwell_matmul_dynamic",
    kernel={"gpu": blackwell_matmul},
    reference=reference,
    inputs=_inputs(pair=False, schedule="dynamic"),
    backends=BLACKWELL,
    exact=True,
    vmappable=False,
    relations=_RELATIONS,
    typical=_typical(pair=False, schedule="dynamic"),
    equivalent=_NO_PAIR,
)

SPEC_PAIR = KernelSpec(
    name="blackwell_matmul_pair",
    kernel={"gpu": blackwell_matmul},
    reference=reference,
    inputs=_inputs(
        pair=True,
        block_n=256,
        schedule=st.sampled_from(get_args(Schedule)),
        programs=st.sampled_from([1, 2]),
    ),
    backends=BLACKWELL,
    exact=True,
    vmappable=False,
    relations=_RELATIONS,
    typical=(*_typical(), *_typical(schedule="static")),
)
