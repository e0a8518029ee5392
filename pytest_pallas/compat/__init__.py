"""The only package that touches private names of JAX, pytest or hypothesis.

One function a fact, each with the versions in which it was seen. When a new release moves
something, this is the place to mend.
"""

from __future__ import annotations

from pytest_pallas.compat.aliases import pipelined_aliases, separate_aliases
from pytest_pallas.compat.barriers_gpu import barriers_checked
from pytest_pallas.compat.bounds import Beyond, bounds_checked
from pytest_pallas.compat.bounds_named import gpu_bounds_named
from pytest_pallas.compat.clocks import clocks_for_dmas
from pytest_pallas.compat.compilers import (
    device_attributes,
    devices_answer,
    exact_exports,
    interpret_ignored,
    meshes_of,
)
from pytest_pallas.compat.cores import cores_in_threads
from pytest_pallas.compat.environment import variables_of_imports
from pytest_pallas.compat.fuzzing import (
    hypothesis_profile,
    hypothesis_seed,
    hypothesis_settings,
    is_of_shrinking,
    sampled_elements,
    set_database_key,
    set_hypothesis_settings,
    without_module_constants,
)
from pytest_pallas.compat.grids import (
    BlockFacts,
    GridFacts,
    bind,
    evaluate_index_map,
    grid_facts,
    masked_window,
    window_of,
)
from pytest_pallas.compat.interpreters import (
    clear_effect_tokens,
    fail_interpreters,
    memory_filled,
    mended_tpu_interpreter,
    printed_races,
    quick_callbacks,
    quiet_callbacks,
    release_interpreters,
    reset_interpreters,
)
from pytest_pallas.compat.jaxprs import (
    FOREIGN_PRIMITIVES,
    KERNEL_PRIMITIVES,
    block_programs,
    called_jaxpr,
    eval_jaxpr,
    kernel_name,
    overhanging_blocks,
    parallel_programs,
    source_line,
    sub_jaxprs,
    unwritten_memory,
    written_inputs,
)
from pytest_pallas.compat.masked import masked_loads_unspecified
from pytest_pallas.compat.memory import Place, memory_place, memory_placed, outputs_told
from pytest_pallas.compat.mended_gpu import mended_gpu_interpreter
from pytest_pallas.compat.missing import missing_operations, simulated_parts
from pytest_pallas.compat.negative import negative_indices_refused
from pytest_pallas.compat.proxies_gpu import wgmma_reads_checked
from pytest_pallas.compat.races_named import gpu_race_named
from pytest_pallas.compat.rewriting import (
    Spot,
    closed_with,
    equations_of,
    guarded,
    holds_kernels,
    home_of,
    indexed,
    inner_operands,
    inner_variables,
    is_literal,
    is_machinery,
    is_of_jax,
    jitted_jaxpr,
    literal,
    operand_groups,
    own_lines,
    place_of_call,
    places_in_kernel,
    reindexed,
    renamed,
    variable,
    with_equations,
    with_index_map,
    with_jaxprs,
)
from pytest_pallas.compat.settings import (
    Setting,
    interpreters_in_use,
    jax_setting_in_force,
    jax_settings,
    set_jax_setting,
)
from pytest_pallas.compat.simulated import Left, Memory, Operation
from pytest_pallas.compat.sparse_core import sparse_core_meshes
from pytest_pallas.compat.testing import (
    collected,
    configured,
    fixture_is_overridden,
    session_of,
    terminal_width,
)
from pytest_pallas.compat.tma import tma_windows_from_before
from pytest_pallas.compat.watching import (
    oldest_dma_first,
    watchable,
    watched,
)
from pytest_pallas.compat.watching_gpu import BarrierWait, watched_threads

__all__ = [
    "FOREIGN_PRIMITIVES",
    "KERNEL_PRIMITIVES",
    "BarrierWait",
    "Beyond",
    "BlockFacts",
    "GridFacts",
    "Left",
    "Memory",
    "Operation",
    "Place",
    "Setting",
    "Spot",
    "barriers_checked",
    "bind",
    "block_programs",
    "bounds_checked",
    "called_jaxpr",
    "clear_effect_tokens",
    "clocks_for_dmas",
    "closed_with",
    "collected",
    "configured",
    "cores_in_threads",
    "device_attributes",
    "devices_answer",
    "equations_of",
    "eval_jaxpr",
    "evaluate_index_map",
    "exact_exports",
    "fail_interpreters",
    "fixture_is_overridden",
    "gpu_bounds_named",
    "gpu_race_named",
    "grid_facts",
    "guarded",
    "holds_kernels",
    "home_of",
    "hypothesis_profile",
    "hypothesis_seed",
    "hypothesis_settings",
    "indexed",
    "inner_operands",
    "inner_variables",
    "interpret_ignored",
    "interpreters_in_use",
    "is_literal",
    "is_machinery",
    "is_of_jax",
    "is_of_shrinking",
    "jax_setting_in_force",
    "jax_settings",
    "jitted_jaxpr",
    "kernel_name",
    "literal",
    "masked_loads_unspecified",
    "masked_window",
    "memory_filled",
    "memory_place",
    "memory_placed",
    "mended_gpu_interpreter",
    "mended_tpu_interpreter",
    "meshes_of",
    "missing_operations",
    "negative_indices_refused",
    "oldest_dma_first",
    "operand_groups",
    "outputs_told",
    "overhanging_blocks",
    "own_lines",
    "parallel_programs",
    "pipelined_aliases",
    "place_of_call",
    "places_in_kernel",
    "printed_races",
    "quick_callbacks",
    "quiet_callbacks",
    "reindexed",
    "release_interpreters",
    "renamed",
    "reset_interpreters",
    "sampled_elements",
    "separate_aliases",
    "session_of",
    "set_database_key",
    "set_hypothesis_settings",
    "set_jax_setting",
    "simulated_parts",
    "source_line",
    "sparse_core_meshes",
    "sub_jaxprs",
    "terminal_width",
    "tma_windows_from_before",
    "unwritten_memory",
    "variable",
    "variables_of_imports",
    "watchable",
    "watched",
    "watched_threads",
    "wgmma_reads_checked",
    "window_of",
    "with_equations",
    "with_index_map",
    "with_jaxprs",
    "without_module_constants",
    "written_inputs",
]
