"""State: outputs that share the memory of inputs, and references as values."""

from reference_kernels.refs.inplace import add_one_aliased, add_one_by_ref

__all__ = ["add_one_aliased", "add_one_by_ref"]
