"""Static analysis of grids: which program reads and writes which block, and what is wrong there."""

from pytest_pallas.analysis.grid.analysis import Analysis, analyze_jaxpr, merged
from pytest_pallas.analysis.grid.findings import GridFinding
from pytest_pallas.analysis.grid.model import has_blocks

__all__ = ["Analysis", "GridFinding", "analyze_jaxpr", "has_blocks", "merged"]
