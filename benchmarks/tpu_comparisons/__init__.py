"""What ``benchmarks/tpu_cost.py`` compares: one module a kernel, each with its ``ROWS``."""
