"""Tests that the processes of one JAX program run together."""
