"""A simulated machine for Pallas kernels that compiles nothing.

It evaluates what JAX traced, kernels and everything around them, equation by equation in numpy. It
needs neither pytest nor hypothesis.
"""

from __future__ import annotations

from pytest_pallas.findings import Finding
from pytest_pallas.simulator.machine import Limits, Machine
from pytest_pallas.simulator.registry import Equation, rule
from pytest_pallas.simulator.simulate import Simulation, simulate

__all__ = ["Equation", "Finding", "Limits", "Machine", "Simulation", "rule", "simulate"]
