"""Launches of Mosaic GPU kernels: grids, scopes, what a chip has, and what other launches do."""
