"""Kernels of ``pl`` alone and of the Triton route: a grid whose programs run in any order."""
