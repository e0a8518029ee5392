"""Backends: ways to execute a kernel. Importing this package does not import jax."""
