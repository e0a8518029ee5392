"""From specs and tests to pytest items: which kernels, checks and backends there are to ask."""
