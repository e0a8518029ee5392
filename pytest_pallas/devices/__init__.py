"""Simulated devices and meshes. Importing this package does not import jax."""

from pytest_pallas.devices.mesh import make_mesh
from pytest_pallas.devices.simulate import simulate

__all__ = ["make_mesh", "simulate"]
