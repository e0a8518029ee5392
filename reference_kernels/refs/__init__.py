"""State: outputs that share the memory of inputs, references as values, memory that has a scope."""

from reference_kernels.refs.copy_in_flight import copy_in_flight
from reference_kernels.refs.inplace import (
    add_one_aliased,
    add_one_by_ref,
    add_one_to_empty,
    add_one_to_first,
    add_steps,
)
from reference_kernels.refs.kernel_matmul import kernel_matmul
from reference_kernels.refs.no_hazard import exp_in_place
from reference_kernels.refs.route_rows import route_rows
from reference_kernels.refs.scoped import octuple, octuple_counted
from reference_kernels.refs.swap_cores import sum_on_cores, swap_cores

__all__ = [
    "add_one_aliased",
    "add_one_by_ref",
    "add_one_to_empty",
    "add_one_to_first",
    "add_steps",
    "copy_in_flight",
    "exp_in_place",
    "kernel_matmul",
    "octuple",
    "octuple_counted",
    "route_rows",
    "sum_on_cores",
    "swap_cores",
]
