"""Specs for the Pallas kernels that come with JAX: one module a kernel, one folder a platform."""
