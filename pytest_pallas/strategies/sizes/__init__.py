"""Sizes of dims: the shape language, constraints, and the pools that they are drawn from."""
