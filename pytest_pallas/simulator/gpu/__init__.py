"""Kernels on a GPU: grids of programs that run at once, and what their threads do."""
