"""Read what JAX traced: equations and their kernels, grids, source lines.

Public. JAX documents little of what its jaxprs hold, so each of these functions reads private names
of JAX, in ``pallas_sim.compat``, where its docstring and its test are. Whoever builds upon the
machine imports them from here, and follows JAX's changes by upgrading this package:

- equations and the jaxprs inside them: ``equations``, ``equations_inside``, ``sub_jaxprs``,
  ``open_jaxpr``, ``is_literal``;
- the kernels among them: ``KERNEL_PRIMITIVES``, ``kernel_name``, ``written_for``, ``platform_of``;
- the grid and the blocks of a ``pallas_call``: ``grid_facts``, a ``GridFacts`` of ``BlockFacts``;
- what a kernel does with memory: ``space_of``, ``written_inputs``, ``is_indexer``;
- what is known of the numbers in its body: ``KernelConditions``;
- the user's lines: ``source_line``, ``note_callers``, ``place_of_call``, a ``Spot``;
- other programs of a trace: ``called_by``, ``expanded``, ``without_dead_code``, ``discharged``;
- tracing itself, for compilers: ``interpret_ignored``, ``exact_exports``, ``limit_traces``.
"""

from pallas_sim.compat.compilers import (
    exact_exports,
    interpret_ignored,
    is_compiler_error,
)
from pallas_sim.compat.grids import (
    BlockFacts,
    GridFacts,
    grid_facts,
    in_body,
    platform_of,
    written_for,
)
from pallas_sim.compat.jaxprs import (
    FOREIGN_PRIMITIVES,
    KERNEL_PRIMITIVES,
    argument_names,
    called_by,
    discharged,
    equations,
    equations_inside,
    expanded,
    is_dropped,
    is_literal,
    is_reference,
    kernel_name,
    limit_traces,
    open_jaxpr,
    read_inputs,
    scan_parts,
    semaphore_kind,
    space_of,
    sub_jaxprs,
    without_dead_code,
    written_inputs,
)
from pallas_sim.compat.places import is_indexer, names_a_device
from pallas_sim.compat.source import (
    Spot,
    home_of,
    is_call_stack,
    is_machinery,
    is_of_jax,
    note_callers,
    own_lines,
    place_of_call,
    places_in_kernel,
    source_line,
)
from pallas_sim.conditions import KernelConditions
from pallas_sim.transforms import Operand

__all__ = [
    "FOREIGN_PRIMITIVES",
    "KERNEL_PRIMITIVES",
    "BlockFacts",
    "GridFacts",
    "KernelConditions",
    "Operand",
    "Spot",
    "argument_names",
    "called_by",
    "discharged",
    "equations",
    "equations_inside",
    "exact_exports",
    "expanded",
    "grid_facts",
    "home_of",
    "in_body",
    "interpret_ignored",
    "is_call_stack",
    "is_compiler_error",
    "is_dropped",
    "is_indexer",
    "is_literal",
    "is_machinery",
    "is_of_jax",
    "is_reference",
    "kernel_name",
    "limit_traces",
    "names_a_device",
    "note_callers",
    "open_jaxpr",
    "own_lines",
    "place_of_call",
    "places_in_kernel",
    "platform_of",
    "read_inputs",
    "scan_parts",
    "semaphore_kind",
    "source_line",
    "space_of",
    "sub_jaxprs",
    "without_dead_code",
    "written_for",
    "written_inputs",
]
