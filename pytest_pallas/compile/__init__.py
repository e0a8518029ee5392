"""The chips' own compilers, run in supervised workers. Importing this package imports no jax."""
