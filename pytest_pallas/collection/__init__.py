"""From specs and tests to pytest items: which checks run on which kernels and backends."""
