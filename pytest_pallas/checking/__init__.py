"""What ``pallas_check`` and ``pytest_pallas.check`` do with a function, and with a spec."""
