"""Short messages for what compilers reject: what, which operand, which limit, which line."""

from pytest_pallas.analysis.refusals.message import full_text, short

__all__ = ["full_text", "short"]
