"""Kernels of `jax.experimental.pallas.ops.gpu` for Mosaic GPU, on Hopper and Blackwell."""
