"""Private names of JAX: how much shared memory its lowering asks for a Mosaic GPU kernel.

Seen in JAX 0.11.2 and 0.12.0.1. It can go when JAX has a public function for it. Probe:
``tests/unit/compat/test_resources.py``.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

#: Bytes of a barrier, and of the address of tensor memory, which the hardware writes there.
_BARRIER, _ADDRESS = 8, 4

#: What a profiler keeps of an event: two ends, each of two words.
_EVENT = 2 * 2 * 4


def requested_shared_bytes(jaxpr: Any, mesh: Any, params: Any) -> int | None:
    """Bytes of shared memory that a block of a Mosaic GPU kernel is launched with.

    JAX's own estimate gives the scratch and the barriers (``_estimate_resources`` in
    ``jax/_src/pallas/mosaic_gpu/lowering.py``), so the number follows the JAX that is installed.
    They lie as ``_smem_tree_size`` and ``_launch`` in ``jax/experimental/mosaic/gpu/core.py`` say.

    Args:
      jaxpr: body of the kernel.
      mesh: its ``plgpu.Mesh``.
      params: its ``plgpu.CompilerParams``, or None for the default.

    Returns:
      The bytes, or None for a kernel that JAX does not lower.
    """
    lowering: Any = importlib.import_module("jax._src.pallas.mosaic_gpu.lowering")
    plgpu: Any = importlib.import_module("jax.experimental.pallas.mosaic_gpu")
    params = plgpu.CompilerParams() if params is None else params
    axes = lowering._AxisNames(mesh.grid_names, mesh.cluster_names, mesh.thread_name)
    context = lowering.ResourceEstimatorContext(
        reduction_scratch_bytes=params.reduction_scratch_bytes,
        axis_names=axes.reverse(),
        lowering_semantics=params.lowering_semantics,
    )
    try:
        resources = lowering._estimate_resources(context, jaxpr)
    except (NotImplementedError, ValueError, LookupError):
        return None
    barriers = sum(barrier.num_barriers for barrier in resources.barriers)
    size = resources.smem_scratch_bytes + _BARRIER * barriers
    if resources.tmem_scratch_cols + resources.tmem_collective_scratch_cols:
        size += _ADDRESS
    if params.profile_space:
        threads = 128 * (mesh.num_threads or 1)
        by_warp = params.profile_trace_scope.name == "WARP"
        traces = threads // (32 if by_warp else 128)
        size = math.ceil(size / 8) * 8 + params.profile_space * _EVENT * traces
    return size
