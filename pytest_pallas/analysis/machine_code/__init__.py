"""What can be read off a compiler's output. Pure text in, dataclasses out."""

from pytest_pallas.analysis.machine_code.cost import Cost, total

__all__ = ["Cost", "total"]
