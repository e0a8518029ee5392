"""Kernels of `jax.experimental.pallas.ops.gpu` that Pallas compiles through Triton."""
