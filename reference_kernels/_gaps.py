"""What JAX's own interpreters cannot run, or run wrong: kernels that need it do not claim them.

A test runs one kernel for each gap, and fails when JAX has closed it: the kernels may then claim
that interpreter again.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax

from pytest_pallas.spec import CLAIMED, ExpectedFailure

_BOTH = ("interpret", "tpu-interpret")


@dataclass(frozen=True)
class Gap:
    """Something that interpreters of JAX lack.

    Attributes:
      reason: what they cannot do.
      interpreters: which of them, as backends.
      shown_by: name of a kernel that needs it.
    """

    reason: str
    interpreters: tuple[str, ...]
    shown_by: str


def without(gap: Gap) -> tuple[str, ...]:
    """The backends that a kernel of any TPU claims if it needs what the gap's interpreters lack."""
    return tuple(name for name in CLAIMED["tpu"] if name not in gap.interpreters)


REACHING = Gap("reach another device or core", ("interpret",), "right_permute")
SPARSE_CORES = Gap("run vector subcores of a SparseCore", _BOTH, "vector_map")
SCALAR_CORES = Gap("run the scalar subcore of a SparseCore", ("interpret",), "scalar_cumsum")
SEVERAL_BODIES = Gap("run several bodies of one kernel", _BOTH, "staged_map")
PACKING = Gap("pack and unpack elements", _BOTH, "pack")
ROUNDING = Gap("round stochastically", _BOTH, "stochastic_round")
CONVOLUTION = Gap("run pltpu.conv", _BOTH, "conv2d")
MATRIX_UNITS = Gap("control the matrix units", _BOTH, "matmul_explicit_mxu")
ASKING_PLACES = Gap("say in which memory an array is", _BOTH, "add_one_placed")
CHOSEN_REFERENCES = Gap("choose between references", _BOTH, "route_rows")
KEYS = Gap("hold random keys of Pallas", _BOTH, "sample_block_hardware")
# The TPU interpreter's words are zeros.
RANDOM = Gap("draw random numbers", _BOTH, "dropout")
MASKED_LOADS = Gap("load under a mask", ("tpu-interpret",), "load_where")
OUTLIVING = Gap("pass semaphores from kernel to kernel", _BOTH, "copy_in_flight")
KNOWN_LATE = Gap("copy a length that is known at run time", ("interpret",), "ragged_copy")
REVISITS = Gap("visit a block again", ("tpu-interpret",), "accumulate_sum_by_rows")
ASSUMPTIONS = Gap("run pltpu.annotate", ("tpu-interpret",), "exp_in_place")
WINDOWS_BEFORE = Gap("begin a window before its array", ("tpu-interpret",), "halo_stencil_padded")
READING_SEMAPHORES = Gap("read a semaphore", ("tpu-interpret",), "octuple_counted")
OVERHANGING_ALIASES = Gap(
    "alias an array whose blocks hang over its edge", ("tpu-interpret",), "add_one_aliased"
)
BATCHES = Gap(
    "run a kernel under vmap that has dimension_semantics", ("tpu-interpret",), "matmul_batched"
)
TRACE = Gap(
    "delay, and trace values",
    # JAX 0.12 brought the TPU interpreter both.
    ("interpret",) if jax.__version_info__ >= (0, 12) else _BOTH,
    "timing_probe",
)

#: All of them.
GAPS: tuple[Gap, ...] = tuple(value for value in globals().values() if isinstance(value, Gap))


def batches_fail(*checks: str) -> dict[str, ExpectedFailure]:
    """Strict expected failures of checks that batch a kernel where JAX cannot."""
    failure = ExpectedFailure(reason=f"cannot {BATCHES.reason}", jax="0.12.0.1", checks=checks)
    return dict.fromkeys(BATCHES.interpreters, failure)
