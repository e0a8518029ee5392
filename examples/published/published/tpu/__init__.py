"""Kernels of `jax.experimental.pallas.ops.tpu`."""
