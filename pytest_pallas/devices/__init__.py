"""Simulated devices and meshes. No module here imports jax before it makes something of it."""
