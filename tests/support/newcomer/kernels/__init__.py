"""Kernels of somebody who is new."""
