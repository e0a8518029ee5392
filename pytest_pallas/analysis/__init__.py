"""What is known of a kernel without running it."""

from pytest_pallas.analysis.kernel_calls import (
    KernelCall,
    kernel_calls,
    live_kernel_calls,
    mutated_operands,
)
from pytest_pallas.analysis.unwritten import describe_writer, writers_of

__all__ = [
    "KernelCall",
    "describe_writer",
    "kernel_calls",
    "live_kernel_calls",
    "mutated_operands",
    "writers_of",
]
